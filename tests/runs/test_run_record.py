"""The outputs on the test rows, kept with every run."""

import pytest
import torch
from small import blobs, line

import fedbridge as fb
from fedbridge.base.errors import NonFiniteError, ShapeError
from fedbridge.evaluation.diagnostics import diagnose
from fedbridge.runs import record as run_record
from fedbridge.runs.folder import RunFolderError
from fedbridge.runs.record import TESTED_FILE, read_tested, write_tested

QUICK = {"rounds": 2, "workers": 1, "lr": 0.1, "batch_size": 8}


@pytest.mark.parametrize("method", ["fedda", "knn-per", "apfl", "auto"])
def test_they_are_the_outputs_of_the_delivered_model(method, tmp_path):
    task = blobs()
    result = fb.run(task, method, **QUICK, model="mlp:8", out=tmp_path / "run")
    kept = read_tested(tmp_path / "run")
    with torch.no_grad():
        torch.testing.assert_close(kept.outputs, result.model(task.test.x))
    assert torch.equal(kept.labels, task.test.y)
    found = diagnose(kept.outputs, kept.labels, 3).measures["accuracy"]
    assert found.value == pytest.approx(result.summary["accuracy_last"])


def test_early_stopping_keeps_those_of_the_best_round(tmp_path):
    task = blobs()
    options = {**QUICK, "rounds": 30, "early_stopping": 2, "model": "linear"}
    for site in task.sources:
        site.y.copy_((site.y + 1) % 3)
    result = fb.run(task, "source-only", **options, out=tmp_path / "run")
    with torch.no_grad():
        expected = result.model(task.test.x)
    torch.testing.assert_close(read_tested(tmp_path / "run").outputs, expected)


def test_values_are_kept_too(tmp_path):
    fb.run(line(), "fedda", **QUICK, model="linear", out=tmp_path / "run")
    kept = read_tested(tmp_path / "run")
    assert kept.outputs.shape == (20, 1)
    assert kept.labels.dtype == torch.float32


def test_a_run_that_goes_on_has_none_until_it_is_finished(tmp_path):
    def look(_):
        seen.append(read_tested(tmp_path / "run"))

    seen = []
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "run")
    more = {**QUICK, "rounds": 3}
    fb.run(blobs(), "fedda", **more, out=tmp_path / "run", resume=True, callbacks=[look])
    assert seen == [None]
    assert len(read_tested(tmp_path / "run")) == 60


def test_an_old_run_has_none(tmp_path):
    assert read_tested(tmp_path) is None


def test_they_come_back_as_they_were_written(tmp_path):
    kept = run_record.Tested(torch.randn(4, 2), torch.tensor([0, 1, 1, 0]))
    write_tested(tmp_path, kept)
    back = read_tested(tmp_path)
    assert torch.equal(back.outputs, kept.outputs)
    assert torch.equal(back.labels, kept.labels)


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / TESTED_FILE).write_bytes(b"no tensors")
    with pytest.raises(RunFolderError, match=r"test\.safetensors"):
        read_tested(tmp_path)


def test_outputs_must_fit_the_labels_and_be_finite():
    with pytest.raises(ShapeError):
        run_record.Tested(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(NonFiniteError):
        run_record.Tested(torch.tensor([[float("nan"), 0.0]]), torch.zeros(1))
