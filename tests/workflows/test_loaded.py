"""Tasks that a process has loaded already."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fedbridge.workflows import loaded
from fedbridge.workflows.loaded import load_once

if TYPE_CHECKING:
    from pathlib import Path

TABLE = {"site_column": "site", "label_column": "ill"}


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is loaded, from the beginning."""
    names, load_task = [], loaded.load_task

    def noted(name, *args, **options):
        names.append(name)
        return load_task(name, *args, **options)

    monkeypatch.setattr(loaded, "load_task", noted)
    loaded._tasks.clear()
    yield names
    loaded._tasks.clear()


def lines(shift: float) -> list[str]:
    return [f"{row * 7 % 13 + 20.5 + shift},{row % 2}" for row in range(40)]


def table(folder: Path, shift: float = 0) -> Path:
    rows = [f"{site},{line}" for k, site in enumerate("ns") for line in lines(shift + k)]
    file = folder / "patients.csv"
    file.write_text("\n".join(["site,age,ill", *rows]) + "\n")
    return file


def test_the_same_task_is_loaded_once(nothing_loaded):
    first = load_once("digits-noise", None, 0, {"n_target": 20})
    assert load_once("digits-noise", None, 0, {"n_target": 20}) is first
    assert len(nothing_loaded) == 1
    for seed, options in ((1, {"n_target": 20}), (0, {"n_target": 21}), (0, {})):
        assert load_once("digits-noise", None, seed, options) is not first
    assert len(nothing_loaded) == 4


def test_a_file_that_has_changed_is_read_again(tmp_path, nothing_loaded):
    file = table(tmp_path)
    first = load_once(str(file), "n", 0, TABLE)
    assert load_once(str(file), "n", 0, TABLE) is first
    table(tmp_path, shift=100)
    os.utime(file, ns=(1, 1))
    again = load_once(str(file), "n", 0, TABLE)
    assert again.preprocessing != first.preprocessing


def test_so_is_a_file_in_a_folder_and_one_that_a_task_file_names(tmp_path, nothing_loaded):
    folder = tmp_path / "sites"
    folder.mkdir()
    for shift, site in enumerate("ns"):
        (folder / f"{site}.csv").write_text("\n".join(["age,ill", *lines(shift)]) + "\n")
    described = tmp_path / "task.toml"
    described.write_text('[task]\npath = "sites"\ntarget = "n"\nlabel_column = "ill"\n')
    asked = [(str(folder), "n", 0, {"label_column": "ill"}), (str(described), None, 0, {})]
    first = [load_once(*one) for one in asked]
    assert [load_once(*one) for one in asked] == first
    os.utime(folder / "s.csv", ns=(1, 1))
    assert not any(a is b for a, b in zip([load_once(*one) for one in asked], first, strict=True))


def test_what_a_key_cannot_say_is_loaded_each_time(nothing_loaded, monkeypatch):
    monkeypatch.setattr(loaded, "is_plain", lambda value: False)
    for _ in range(2):
        load_once("digits-noise", None, 0, {"n_target": 20})
    assert len(nothing_loaded) == 2


def test_only_so_much_is_held(nothing_loaded, monkeypatch):
    first = load_once("digits-noise", None, 0, {})
    monkeypatch.setattr(loaded, "MOST_BYTES", 2 * loaded._bytes(first))
    for seed in (1, 2):
        load_once("digits-noise", None, seed, {})
    assert load_once("digits-noise", None, 0, {}) is first  # two beside it
    load_once("digits-noise", None, 3, {})
    assert len(loaded._tasks) == 3
    load_once("digits-noise", None, 1, {})  # the oldest, which had to go
    assert nothing_loaded == ["digits-noise"] * 5
    monkeypatch.setattr(loaded, "MOST_BYTES", 0)
    load_once("digits-noise", None, 4, {})
    assert len(loaded._tasks) == 1
