"""A run's folder is one thing: whatever is swapped, edited or cut is refused by name."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import blobs

import fedbridge as fb
from fedbridge.cli.main import main
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


@pytest.mark.parametrize(
    "name", ["report.html", "model-card.md", "model.safetensors", "test.safetensors"]
)
def test_resume_completes_what_is_missing_and_nothing_else_changes(tmp_path, name):
    whole = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a").out
    before = {file.name: file.read_bytes() for file in whole.iterdir() if file.is_file()}
    (whole / name).unlink()
    (whole / ".summary.json.77.partial").write_text("half")
    fb.run(blobs(), "fedda", **QUICK, out=whole, resume=True)
    after = {file.name: file.read_bytes() for file in whole.iterdir() if file.is_file()}
    assert after.keys() == before.keys()
    assert {key for key in after if after[key] != before[key]} <= {"report.html"}
    RunFolder(whole).verify()


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
