"""Arguments and files that are nonsense end with one sentence and exit status 2."""

import io
import json
import os
import resource
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedbridge.base import files
from fedbridge.base.errors import DataError
from fedbridge.cli.main import main
from fedbridge.data.arrays import read_arrays
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.shapes import SUMMARY, misfit

TABLE = "site,age,ill\n" + "".join(
    f"{site},{k * 7 % 31},{'yes' if k % 3 else 'no'}\n" for site in "abc" for k in range(24)
)
COLUMNS = ["--target", "a", "--site-column", "site", "--label-column", "ill"]
RUN = ["run", "t.csv", *COLUMNS, "--workers", "1", "--model", "linear", "--method", "fedavg"]
ONE = [*RUN, "--rounds", "1", "--quiet", "--out", "run"]
HUGE = "99999999999"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TABLE)
    return tmp_path


def refused(capsys, words):
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("fedbridge: error: ") for line in said] == [True], said
    return said[0]


NUMBERS = ("rounds", "batch-size", "epochs", "steps", "warmup", "sketch-size", "workers", "seed")
SHARES = ("test-fraction", "target-fraction", "participation", "dropout", "momentum", "lr")


@pytest.mark.parametrize("value", ["abc", "-1", HUGE, "9" * 5000, "nan", "1e400", "[[", ""])
@pytest.mark.parametrize("option", [*NUMBERS, *SHARES])
def test_an_option_that_is_no_such_number(place, capsys, option, value):
    if option in ("seed", "lr") and value == HUGE:
        pytest.skip("it may be that large")
    assert "internal" not in refused(capsys, [*ONE, f"--{option}={value}"])


@pytest.mark.parametrize(
    "more",
    [
        ["--vary", "seed="],
        ["--vary", "=1"],
        ["--vary", "rounds"],
        ["--seeds", HUGE],
        ["--seeds", "0"],
        ["--seeds", "-1"],
        ["--rounds", HUGE],
        ["--set", "lr=" + "[" * 10_000],
    ],
    ids=lambda more: " ".join(more)[:30],
)
def test_a_comparison_of_nonsense(place, capsys, more):
    refused(capsys, ["compare", "t.csv", *COLUMNS, "--seeds", "1", "--rounds", "1", *more])


@pytest.mark.parametrize(
    "words", [["report", "run", "--out", ""], ["report", ""], ["watch", ""], ["predict", "", "x"]]
)
def test_an_empty_name_is_a_mistake(place, capsys, words):
    assert "the name of a file or folder" in refused(capsys, words)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "[a]\n" + "b." * 5000 + "c = 1"])
def test_a_deeply_nested_task_file(place, capsys, text):
    Path("t.toml").write_text(text)
    assert "t.toml" in refused(capsys, ["run", "t.toml"])


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "not UTF-8": lambda data: data[:9] + b"\xff\xfe" + data[9:],
    "empty": lambda data: b"",
    "a list": lambda data: b"[1, 2]",
    "deep": lambda data: b"[" * 100_000,
    "other kinds": lambda data: b'{"format": 1, "rounds": "x", "files": 3, "method": {}}',
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "t.csv").write_text(TABLE)
    before = Path.cwd()
    os.chdir(folder)
    assert main(ONE) == 0
    os.chdir(before)
    return folder


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["summary.json", "checksums.json", "config.toml", "preprocessing.json"]
)
def test_a_damaged_record_is_named(finished, monkeypatch, capsys, name, damage):
    monkeypatch.chdir(finished)
    Path("new.csv").write_text("age\n3\n")
    whole = Path("run", name).read_bytes()
    Path("run", name).write_bytes(DAMAGE[damage](whole))
    try:
        for more in ([], ["--unchecked"]):
            if more and name == "checksums.json":
                continue
            assert name in refused(capsys, ["predict", "run", "new.csv", *more]) or more
    finally:
        Path("run", name).write_bytes(whole)


def test_a_damaged_line_of_the_history_is_named_and_a_half_written_last_one_left_out(tmp_path):
    file = tmp_path / "history.jsonl"
    file.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert [line["round"] for line in RunFolder(tmp_path).history()] == [1, 2]
    for damaged in (
        '{"round": 1}\n{"rou\n{"round": 3}\n',
        '{"round": "x"}\n',
        '[1]\n{"round": 2}\n',
    ):
        file.write_text(damaged)
        with pytest.raises(RunFolderError, match=r"history\.jsonl"):
            RunFolder(tmp_path).history()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 1, "cells": [{}]}'])
def test_a_damaged_comparison_is_named(place, capsys, text):
    Path("c").mkdir()
    Path("c", "comparison.json").write_text(text)
    for words in (["report", "c"], ["watch", "c", "--once"]):
        assert "comparison.json" in refused(capsys, words)


@pytest.mark.parametrize("name", ["seed", "target", "name-or-path", "progress"])
def test_an_option_cannot_stand_for_another_argument(place, capsys, name):
    assert "is neither" in refused(capsys, [*ONE, "--set", f"{name}=3"])


def test_lists_and_names_that_do_not_fit_each_other_are_named(place, capsys):
    assert main(ONE) == 0
    capsys.readouterr()
    Path("new.csv").write_text("age\n3\n")
    config, history = Path("run/config.toml"), Path("run/history.jsonl")
    history.write_text(json.dumps({"round": 1, "accuracy": 1.0, "beta": [0.5]}) + "\n")
    for words in (["report", "run"], ["advise", "run"]):
        more = ["--unchecked"] if words[0] == "report" else []
        assert "history.jsonl" in refused(capsys, [*words, *more])
    config.write_text(config.read_text().replace('"yes"', '"yes", "more"'))
    assert "config.toml" in refused(capsys, ["predict", "run", "new.csv", "--unchecked"])


def test_a_record_says_which_entry_is_wrong():
    whole = {"rounds": 1, "stopped_early": False, "n_test": 3, "accuracy": 1.5, "auc": None}
    whole |= {"score": None, "accuracy_interval": [0.0, 1]}
    assert misfit(whole, SUMMARY) is None
    assert misfit(whole | {"accuracy": float("nan")}, SUMMARY) == "accuracy"
    assert misfit(whole | {"rounds": True}, SUMMARY) == "rounds"
    assert misfit(whole | {"rounds": 10**30}, SUMMARY) == "rounds"
    assert misfit(whole | {"accuracy_interval": ["x"]}, SUMMARY) == "accuracy_interval"
    assert misfit({**whole, "n_sources": {"a": "b"}}, SUMMARY) == "n_sources"


def forged(shape, kind="<f8", body=b""):
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize(
    "member",
    [
        forged((10**12, 3)),
        forged((2**62, 2**62)),
        forged((-1, 3)),
        forged((3,), "|O", b"x" * 24),
        forged((3,), body=b"x" * 23),
        forged((3,), body=b"x" * 25),
        b"\x93NUMPY\x07\x00",
        b"",
    ],
    ids=lambda member: repr(member[10:60]),
)
def test_an_array_that_claims_what_it_does_not_hold(tmp_path, member):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", member)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz", "X")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_pickle_is_never_opened(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="object"):
        read_arrays(tmp_path / "a.npz", "X")


def test_a_bomb_is_measured_before_it_is_unpacked(tmp_path, monkeypatch):
    data = io.BytesIO()
    np.savez_compressed(data, X=np.zeros((10_000, 100)))
    (tmp_path / "a.npz").write_bytes(data.getvalue())
    assert read_arrays(tmp_path / "a.npz", "X")[0].shape == (10_000, 100)
    monkeypatch.setattr(files, "machine_memory", lambda: 10**6)
    with pytest.raises(DataError, match="memory"):
        read_arrays(tmp_path / "a.npz", "X")


def no_file(path, kind):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"")
        os.truncate(path, 1 << 42)


KINDS = ["pipe", "device", "folder", "dangling", "sparse"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_neither_waited_for_nor_read(place, capsys, kind):
    for folder in ("arrays", "tables", "photos/a/x", "photos/b/x"):
        Path(folder).mkdir(parents=True)
    for name in "ab":
        np.savez(f"arrays/{name}.npz", X=np.ones((9, 2)), y=np.arange(9) % 2)
    for path, words in (
        ("arrays/c.npz", ["run", "arrays", "--target", "a"]),
        ("photos/a/x/1.png", ["run", "photos", "--target", "a", "--image-size", "8"]),
        ("t.toml", ["run", "t.toml"]),
        ("t.csv", ["run", "t.csv", *COLUMNS]),
        ("w.safetensors", [*RUN, "--model", "resnet18:w.safetensors"]),
    ):
        no_file(Path(path), kind)
        refused(capsys, [*words, "--rounds", "1", "--out", "out"])
        assert not Path("out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_no_file_is_named(place, capsys, kind):
    assert main(ONE) == 0
    capsys.readouterr()
    whole = Path("run/summary.json").read_bytes()
    for name in ("summary.json", "model.safetensors", "history.jsonl"):
        kept = Path("run", name).read_bytes()
        no_file(Path("run", name), kind)
        assert name in refused(capsys, ["report", "run"])
        path = Path("run", name)
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(kept)
    assert json.loads(whole)


def test_too_little_memory_is_said_in_a_sentence(place, capsys, monkeypatch):
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: x")):

        def greedy(*_args, error=error, **_options):
            raise error

        monkeypatch.setattr("fedbridge.workflows.run.run", greedy)
        assert "enough memory" in refused(capsys, ONE)
