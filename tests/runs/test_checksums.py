"""A run's folder is one thing: whatever is swapped, edited or cut is refused by name."""

import errno
import json
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import blobs

import fedbridge as fb
from fedbridge.base.files import StorageError
from fedbridge.cli.main import main
from fedbridge.runs.checkpoint import Checkpoint, CheckpointStore
from fedbridge.runs.folder import CHECKSUMS, SEALED, RunFolder, RunFolderError, run_id
from fedbridge.workflows.predict import load_model

TABLE = "site,age,ill\n" + "".join(
    f"{site},{40 + 3 * k % 17},{'yes' if k % 3 else 'no'}\n" for site in "abc" for k in range(24)
)
RUN = ["--target", "a", "--site-column", "site", "--label-column", "ill", "--workers", "1"]
QUICK = {"rounds": 2, "workers": 1, "model": "linear"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on a table: it has every kind of file."""
    folder = tmp_path_factory.mktemp("sealed")
    (folder / "t.csv").write_text(TABLE)
    out = folder / "run"
    words = ["run", str(folder / "t.csv"), *RUN, "--rounds", "2", "--quiet", "--model", "linear"]
    assert main([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def readers(folder):
    """Every command that opens a run."""
    new = str(folder.parent / "new.csv")
    Path(new).write_text("age\n44\n")
    return {
        "predict": ["predict", str(folder), new],
        "report": ["report", str(folder)],
        "watch": ["watch", str(folder), "--once"],
    }


def test_a_finished_run_is_sealed_over_all_its_files(finished):
    sums = json.loads((finished / CHECKSUMS).read_text())["files"]
    assert sorted(sums) == sorted(SEALED)
    RunFolder(finished).verify()


def changed_bytes(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def truncated(file):
    file.write_bytes(file.read_bytes()[:-7])


@pytest.mark.parametrize("spoil", [changed_bytes, truncated])
@pytest.mark.parametrize("name", [name for name in SEALED if name != "summary.json"])
def test_every_reader_refuses_a_changed_file_and_names_it(copy, capsys, name, spoil):
    spoil(copy / name)
    for command in readers(copy).values():
        assert main(command) == 2
        assert name in capsys.readouterr().err


def test_edited_scores_are_refused_and_opened_with_unchecked(copy, capsys):
    file = copy / "summary.json"
    edited = {**json.loads(file.read_text()), "accuracy": 99.9}
    file.write_text(json.dumps(edited))
    for command in readers(copy).values():
        assert main(command) == 2
        shown = capsys.readouterr().err
        assert "summary.json was changed" in shown
        assert "--unchecked" in shown
        assert main([*command, "--unchecked"]) == 0


def test_exchanged_class_names_are_refused(copy):
    file = copy / "config.toml"
    file.write_text(file.read_text().replace('"no"', '"?"').replace('"yes"', '"no"'))
    with pytest.raises(RunFolderError, match=r"config\.toml was changed"):
        load_model(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "preprocessing.json"])
def test_a_file_of_another_run_says_whose_it_is(copy, finished, tmp_path, capsys, name):
    other = tmp_path / "other"
    table = str(finished.parent / "t.csv")
    words = ["run", table, *RUN, "--rounds", "2", "--quiet", "--model", "linear", "--seed", "1"]
    assert main([*words, "--out", str(other)]) == 0
    shutil.copy(other / name, copy / name)
    (copy / CHECKSUMS).unlink()
    with (
        pytest.warns(UserWarning, match=r"no checksums\.json"),
        pytest.raises(RunFolderError, match=f"{name} of this run.*belongs to another"),
    ):
        load_model(copy)


def test_weights_that_are_not_finite_never_predict(copy):
    weights = load_file(copy / "model.safetensors")
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], torch.nan)
    save_file(weights, copy / "model.safetensors", metadata={"format": "1"})
    with pytest.raises(fb.FedbridgeError, match="NaN"):
        load_model(copy, unchecked=True)


def test_a_file_that_was_not_there_does_not_belong(tmp_path):
    out = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a").out
    (out / "preprocessing.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"preprocessing\.json does not belong to it"):
        RunFolder(out).verify()


def test_the_name_of_a_run_survives_its_file(finished):
    config = tomllib.loads((finished / "config.toml").read_text())
    assert run_id(config) == run_id({**config, "rounds": 9, "version": "x", "nothing": None})
    assert run_id(config) != run_id({**config, "seed": 1})


def content(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


CAN_BE_MADE_AGAIN = [
    *("report.html", "model-card.md", "model.safetensors", "test.safetensors"),
    *("preprocessing.json", "manifest.json", "summary.json", CHECKSUMS),
]


@pytest.mark.parametrize("name", [None, *CAN_BE_MADE_AGAIN])
def test_resume_completes_what_is_missing_and_nothing_else_changes(copy, finished, name):
    before = content(copy)
    if name is not None:
        (copy / name).unlink()
    (copy / ".summary.json.77.partial").write_text("half")
    (copy / "checkpoint" / ".round-1000002.json.77.partial").write_text("half")
    table = str(finished.parent / "t.csv")
    words = ["run", table, *RUN, "--rounds", "2", "--quiet", "--model", "linear"]
    assert main([*words, "--out", str(copy), "--resume"]) == 0
    after = content(copy)
    assert after.keys() == before.keys()
    seconds = {"summary.json", CHECKSUMS, "report.html"} if name == "summary.json" else set()
    assert {key for key in after if after[key] != before[key]} <= {"report.html", *seconds}
    RunFolder(copy).verify()


def test_a_history_edited_behind_a_missing_summary_is_refused(copy, finished, capsys):
    (copy / "summary.json").unlink()
    file = copy / "history.jsonl"
    file.write_text(file.read_text().replace('"accuracy": ', '"accuracy": 9'))
    table = str(finished.parent / "t.csv")
    words = ["run", table, *RUN, "--rounds", "2", "--quiet", "--model", "linear"]
    assert main([*words, "--out", str(copy), "--resume"]) == 2
    assert "history.jsonl was changed" in capsys.readouterr().err


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    ours = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a").out
    other = fb.run(blobs(), "fedda", **QUICK, seed=1, out=tmp_path / "b").out
    shutil.rmtree(ours / "checkpoint")
    shutil.copytree(other / "checkpoint", ours / "checkpoint")
    with pytest.raises(RunFolderError, match="checkpoint, but it belongs to another"):
        fb.run(blobs(), "fedda", **{**QUICK, "rounds": 3}, out=ours, resume=True)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path):
    out = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a").out
    store = CheckpointStore(out / "checkpoint")
    kept = store.load()
    for tensors in ({}, {"parameters": torch.zeros(3)}):
        store.save(Checkpoint(kept.round, tensors, kept.facts))
        with pytest.raises(RunFolderError, match="checkpoint that fits this run"):
            fb.run(blobs(), "fedda", **{**QUICK, "rounds": 3}, out=out, resume=True)


@pytest.mark.parametrize("fails_at", range(0, 30, 3))
def test_after_a_full_disk_nothing_is_lost_and_resume_completes(tmp_path, monkeypatch, fails_at):
    whole = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "whole").out
    out, written = tmp_path / "out", []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedbridge.base.files.os.fsync", full)
        if fails_at < len(SEALED):
            with pytest.raises(StorageError, match=r"No space left.*--resume"):
                fb.run(blobs(), "fedda", **QUICK, out=out)
        else:
            with suppress(StorageError):
                fb.run(blobs(), "fedda", **QUICK, out=out)
    assert not list(tmp_path.rglob("*.partial"))
    fb.run(blobs(), "fedda", **QUICK, out=out, resume=True)
    RunFolder(out).verify()
    ours, theirs = content(out), content(whole)
    assert ours.keys() == theirs.keys()
    for name in ("model.safetensors", "test.safetensors", "config.toml", "manifest.json"):
        assert ours[name] == theirs[name]


def test_resume_completes_a_run_that_was_killed_before_its_summary(tmp_path):
    out = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a").out
    for name in (CHECKSUMS, "summary.json", "model.safetensors", "model-card.md", "report.html"):
        (out / name).unlink()
    fb.run(blobs(), "fedda", **QUICK, out=out, resume=True)
    assert (out / "report.html").exists()
    RunFolder(out).verify()


def test_resume_refuses_what_was_changed_unless_told(tmp_path):
    out = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a").out
    changed_bytes(out / "model.safetensors")
    with pytest.raises(RunFolderError, match=r"model\.safetensors was changed"):
        fb.run(blobs(), "fedda", **QUICK, out=out, resume=True)
    fb.run(blobs(), "fedda", **QUICK, out=out, resume=True, unchecked=True)


OWN_MODEL = """
import torch
from pathlib import Path

Path("imported").write_text("yes")

def net():
    return torch.nn.Linear(2, 3)
"""


def test_a_folder_never_decides_what_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_net_of_a_test.py").write_text(OWN_MODEL)
    name = "own_net_of_a_test:net"
    out = fb.run(blobs(), "fedda", **{**QUICK, "model": name}, out=tmp_path / "run").out
    Path("imported").unlink()
    monkeypatch.delitem(__import__("sys").modules, "own_net_of_a_test")
    for command in readers(out).values():
        main(command)
        assert not Path("imported").exists()
    with pytest.raises(RunFolderError, match=f"--model {name}"):
        load_model(out)
    assert load_model(out, model=name).input_shape == (2,)
