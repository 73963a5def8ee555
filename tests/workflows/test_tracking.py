"""Trackers, each read back with its own library; none needs a network."""

import json
import shutil
import sys
import time
import warnings
from pathlib import Path

import pytest
from small import blobs

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.runs.folder import RunFolder
from fedbridge.workflows.tracking.tracker import (
    FINAL,
    Tracker,
    TrackerUnavailableError,
    hyper_parameters,
    labels_of,
    round_values,
)

QUICK = {"workers": 1, "seed": 3}
OF_MLFLOW = "ignore:.*noload.*"  # its use of SQLAlchemy


def interrupted_after(round):
    def stop(line):
        if line["round"] == round:
            raise KeyboardInterrupt

    return stop


class Notebook(Tracker):
    """Writes down what it is told."""

    name, title, record = "notebook", "Notebook", "a"

    def __init__(self, fails_at=None):
        super().__init__()
        self.rounds, self.values, self.ends, self.opened, self.fails_at = [], {}, [], 0, fails_at

    def load(self):
        pass

    def open(self, config, out, known):
        self.opened += 1
        return self.record, known == self.record

    def log(self, round, values):
        if round == self.fails_at:
            raise OSError("no more paper")
        self.rounds.append(round)
        self.values[round] = values

    def finish(self, round, values):
        self.ends.append(values)

    def close(self, *, whole):
        self.ends.append(whole)


# What all of them are told


def test_a_tracker_is_a_callback_and_hears_everything_once():
    book = Notebook()
    result = fb.run(blobs(), "fedgp", rounds=3, warmup=1, **QUICK, callbacks=[book])
    assert book.rounds == [0, 1, 2, 3]
    line = result.history[-1]
    values = book.values[3]
    assert values["accuracy"] == line["accuracy"]
    assert values["beta/site 1"] == line["beta"][1]
    assert values["mean_beta"] == pytest.approx(sum(line["beta"]) / 3)
    told = ("loss", "seconds_train", "seconds_eval", "bytes_up", "bytes_down", "d2/site 0")
    assert {*told} <= {*values}
    final, whole = book.ends
    assert final[f"{FINAL}accuracy"] == result.accuracy
    assert whole is True


def test_what_is_missing_is_not_told_and_odd_names_stay_apart():
    line = {"round": 1, "beta": [None, 0.5], "accuracy": None, "loss": float("inf"), "notes": ["x"]}
    values = round_values(line | {"cv_loss": {"a, b": 2.0}}, ["+90%", "-90%"])
    assert values == {"beta/-90_": 0.5, "mean_beta": 0.5, "cv_loss/a_ b": 2.0, "clients_missing": 0}
    assert labels_of(["a?", "a!", "é"]) == ["a_ 1", "a_ 2", "é"]


def test_hyper_parameters_are_settings_and_no_path_or_column(tmp_path):
    table = tmp_path / "secret-place.csv"
    rows = [f"{s},{a % 7},{a % 2}" for s in "AB" for a in range(20)]
    table.write_text("\n".join(["clinic,age,ill", *rows]))
    task = fb.load_task(table, "A", site_column="clinic", label_column="ill", test_fraction=0.5)
    result = fb.run(task, "fedgp", rounds=1, beta=0.25, lr=0.02, workers=1)
    told = hyper_parameters(result.config)
    assert told["lr"] == 0.02
    assert told["beta"] == 0.25
    assert told["method"] == "fedgp"
    assert told["sources"] == "B"
    assert told["test_fraction"] == 0.5
    assert "None" not in map(str, told.values())
    assert not [v for v in map(str, told.values()) if str(tmp_path) in v or "clinic" in v]


# A run that goes on


def test_after_a_stop_no_round_is_told_twice(tmp_path):
    first, second = Notebook(), Notebook()
    with pytest.raises(KeyboardInterrupt):
        fb.run(
            *(blobs(), "fedda"),
            **(QUICK | {"rounds": 6, "out": tmp_path / "a"}),
            callbacks=[first, interrupted_after(4)],
        )
    assert first.ends == [False]
    newest = max((tmp_path / "a/checkpoint").glob("*.safetensors"))
    newest.write_bytes(b"torn")  # so that rounds are run again that the tracker knows
    ran = []
    with pytest.warns(UserWarning, match="damaged"):
        fb.run(
            *(blobs(), "fedda"),
            **(QUICK | {"rounds": 6, "out": tmp_path / "a", "resume": True}),
            callbacks=[second, lambda line: ran.append(line["round"])],
        )
    assert ran[0] <= 4
    assert first.rounds + second.rounds == [1, 2, 3, 4, 5, 6]


def test_a_tracker_that_comes_later_hears_of_the_rounds_before(tmp_path):
    fb.run(blobs(), "fedda", rounds=2, **QUICK, out=tmp_path / "a")
    book = Notebook()
    fb.run(blobs(), "fedda", rounds=3, **QUICK, out=tmp_path / "a", resume=True, callbacks=[book])
    assert book.rounds == [1, 2, 3]
    again = Notebook()
    fb.run(blobs(), "fedda", rounds=3, **QUICK, out=tmp_path / "a", resume=True, callbacks=[again])
    assert (again.opened, again.rounds, again.ends) == (0, [], [])
    shutil.rmtree(tmp_path / "a/tracking")
    fb.run(blobs(), "fedda", rounds=3, **QUICK, out=tmp_path / "a", resume=True, callbacks=[again])
    assert again.rounds == [1, 2, 3]
    assert again.ends[-1] is True


def test_a_record_that_is_gone_is_told_everything_anew(tmp_path):
    fb.run(blobs(), "fedda", rounds=2, **QUICK, out=tmp_path / "a", callbacks=[Notebook()])
    book = Notebook()
    book.record = "b"
    fb.run(blobs(), "fedda", rounds=3, **QUICK, out=tmp_path / "a", resume=True, callbacks=[book])
    assert book.rounds == [1, 2, 3]


def test_a_torn_note_of_what_was_told_starts_a_new_record(tmp_path):
    fb.run(blobs(), "fedda", rounds=1, **QUICK, out=tmp_path / "a", callbacks=[Notebook()])
    (tmp_path / "a/tracking/notebook.json").write_text('{"id": "a", "rou')
    book = Notebook()
    fb.run(blobs(), "fedda", rounds=2, **QUICK, out=tmp_path / "a", resume=True, callbacks=[book])
    assert book.rounds == [1, 2]


def test_a_run_that_never_works_leaves_nothing_in_its_folder(tmp_path):
    book = Notebook()
    with pytest.raises(fb.FedbridgeError):
        fb.run(blobs(), "fedda", rounds=2, lr=1e30, **QUICK, out=tmp_path / "a", callbacks=[book])
    assert book.opened == 0
    assert not (tmp_path / "a/tracking").exists()


# A tracker that fails


def test_a_failing_tracker_costs_a_warning_and_never_the_run(tmp_path):
    alone = fb.run(blobs(), "fedda", rounds=4, **QUICK)
    book = Notebook(fails_at=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        told = fb.run(blobs(), "fedda", rounds=4, **QUICK, out=tmp_path / "a", callbacks=[book])
    (warned,) = seen
    assert str(warned.message) == (
        "The run goes on without Notebook, which failed (--resume --track notebook makes up for "
        "it): OSError: no more paper"
    )
    assert told.accuracy == alone.accuracy
    assert book.rounds == [1]
    later = Notebook()
    fb.run(blobs(), "fedda", rounds=4, **QUICK, out=tmp_path / "a", resume=True, callbacks=[later])
    assert later.rounds == [2, 3, 4]


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")],
)
def test_a_missing_library_is_named_with_the_command_before_anything_runs(
    name, module, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["run", "digits-noise", "--rounds", "1", "--track", name]) == 2
    assert f"pip install 'fedbridge[{name}]'" in capsys.readouterr().err
    assert main(["compare", "digits-noise", "--rounds", "1", "--track", name]) == 2
    assert f"pip install 'fedbridge[{name}]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_tracker_is_told_the_nearest(capsys):
    assert main(["run", "digits-noise", "--track", "tensorbord"]) == 2
    assert "Did you mean 'tensorboard'?" in capsys.readouterr().err
    with pytest.raises(fb.FedbridgeError, match="different names of trackers"):
        fb.tracking.named("mlflow,mlflow")


# TensorBoard


def scalars(folder):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_back_what_the_command_told_also_after_more_rounds(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    out = tmp_path / "a run"
    words = ["run", "digits-noise", "--method", "fedgp", "--workers", "1", "--out", str(out)]
    words += ["--track", "tensorboard"]
    assert main([*words, "--rounds", "2"]) == 0
    assert f"tracked: tensorboard --logdir {out / 'tensorboard'}" in capsys.readouterr().out
    moved = out.rename(tmp_path / "moved")
    words[words.index(str(out))] = str(moved)
    assert main([*words, "--rounds", "3", "--resume", "--quiet"]) == 0
    history = RunFolder(moved).history()
    found = scalars(moved / "tensorboard")
    assert [step for step, _ in found["accuracy"]] == [1, 2, 3]
    for line, (_, value) in zip(history, found["accuracy"], strict=True):
        assert value == pytest.approx(line["accuracy"])
    assert [step for step, _ in found["beta/source 2"]] == [1, 2, 3]
    summary = json.loads((moved / "summary.json").read_text())
    assert found["final/accuracy"][-1] == (3, pytest.approx(summary["accuracy"]))
    assert _hyper_parameters_of(moved / "tensorboard")["lr"] == pytest.approx(0.1)


def _hyper_parameters_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found = EventAccumulator(str(folder))
    found.Reload()
    content = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    told = HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: value.number_value or value.string_value for name, value in told.items()}


def test_tensorboard_keeps_runs_without_a_folder_apart(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    for _ in range(2):
        fb.run(
            blobs(), "fedda", rounds=1, **QUICK, callbacks=[fb.tracking.TensorBoard(tmp_path / "t")]
        )
    folders = sorted((tmp_path / "t").iterdir())
    assert [len(scalars(folder)["accuracy"]) for folder in folders] == [1, 1]


def test_every_run_of_a_comparison_is_told(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    out = tmp_path / "c"
    fb.compare("digits-noise", ["fedda"], 1, 2, out, alone=False, workers=1, track="tensorboard")
    cells = sorted((out / "cells").iterdir())
    assert len(cells) == 4
    for cell in cells:
        assert [step for step, _ in scalars(cell / "tensorboard")["accuracy"]] == [1, 2]


# MLflow


@pytest.mark.filterwarnings(OF_MLFLOW)
def test_mlflow_reads_back_what_it_was_told_also_after_more_rounds(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'runs.db'}"

    def run(rounds, **more):
        tracker = fb.tracking.MLflow(uri, "clinics")
        out = tmp_path / "run"
        return fb.run(
            blobs(), "fedgp", rounds=rounds, **QUICK, out=out, callbacks=[tracker], **more
        )

    first = run(2, lr=0.05)
    result = run(4, lr=0.05, resume=True)
    client = mlflow.MlflowClient(uri)
    place = client.get_experiment_by_name("clinics").experiment_id
    (found,) = client.search_runs([place])
    assert found.info.status == "FINISHED"
    assert found.data.params["lr"] == "0.05"
    assert found.data.params["method"] == "fedgp"
    assert found.data.metrics["final/accuracy"] == pytest.approx(result.accuracy)
    told = client.get_metric_history(found.info.run_id, "accuracy")
    assert [(one.step, one.value) for one in told] == [
        (line["round"], pytest.approx(line["accuracy"])) for line in result.history
    ]
    assert len(first.history) == 2
    assert len(client.get_metric_history(found.info.run_id, "beta/site 0")) == 4


# Weights & Biases


def records(file: Path):
    """The records of an offline file: blocks of 32 KiB of LevelDB's log, behind 7 bytes."""
    from wandb.proto import wandb_internal_pb2 as proto

    data, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if kind == 0:
            return
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield proto.Record.FromString(parts)
            parts = b""


def wait_for(seen, seconds=60):
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.05)


def told_of(file: Path, kind: str):
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}
        for record in records(file)
        if record.WhichOneof("record_type") == kind
        for found in [getattr(record, kind).item if kind == "history" else record.summary.update]
    ]


def test_weights_and_biases_offline_holds_every_round_once(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"

    def run(rounds, **more):
        tracker = fb.tracking.WandB(mode="offline")
        return fb.run(
            blobs(), "fedgp", rounds=rounds, **QUICK, out=out, callbacks=[tracker], **more
        )

    run(2)
    result = run(3, resume=True)
    files = sorted((out / "wandb").glob("offline-run-*/*.wandb"))
    for file in files:  # the service writes the end of a file after it has been told
        wait_for(lambda file=file: any(r.HasField("exit") for r in records(file)))
    assert len({file.name for file in files}) == 1
    lines = [line for file in files for line in told_of(file, "history")]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [line["accuracy"] for line in lines] == [ln["accuracy"] for ln in result.history]
    assert "beta/site 2" in lines[0]
    last = {k: v for update in told_of(files[-1], "summary") for k, v in update.items()}
    assert last["final/accuracy"] == result.accuracy
    begun = next(r.run for r in records(files[0]) if r.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["method"] == "fedgp"
    assert begun.project == "fedbridge"
    kept = {file.name for file in (out / "wandb").rglob("*") if file.is_file()}
    assert not {"requirements.txt", "wandb-metadata.json", "output.log"} & kept


def test_weights_and_biases_without_a_login_says_so_before_the_run(monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    with pytest.raises(TrackerUnavailableError, match="wandb login"):
        fb.tracking.WandB(mode="online")
