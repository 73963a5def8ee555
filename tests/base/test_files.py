"""Writes are atomic, and errors of the disk say what to do."""

import errno
import os

import pytest

from fedbridge.base.files import StorageError, append_line, to_json, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    write_atomically(file, "old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left.*free some space.*--resume"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert [left.name for left in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(StorageError, match="No space left"):
        append_line(file, "more")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--out"):
        write_atomically(tmp_path / "file" / "below", "x")


def test_json_has_no_nan():
    assert (
        to_json({"a": [float("nan"), 1.5, float("inf")], 2: (1,)})
        == '{"a": [null, 1.5, null], "2": [1]}'
    )
