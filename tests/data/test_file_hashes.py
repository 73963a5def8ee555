"""Hashes of files: remembered, but never of a file that has changed."""

import hashlib
import os
import time

import pytest

from fedbridge.data import file_hashes
from fedbridge.data.file_hashes import content_hashes, stamp_of
from fedbridge.errors import DataError

LONG_AGO = 10**9


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    for name in ("a.png", "b.png"):
        (place / name).write_text(name)
    return place


@pytest.fixture(autouse=True)
def read(monkeypatch):
    """The files that were read, with a clock by which all files are old."""
    names = []
    really = file_hashes._read_hash
    monkeypatch.setattr(
        file_hashes, "_read_hash", lambda file: names.append(file.name) or really(file)
    )
    monkeypatch.setattr(file_hashes, "SETTLED", -LONG_AGO)
    return names


def hashes(folder):
    files = sorted(folder.iterdir())
    index = folder.parent / "index.json"
    return dict(content_hashes(folder, files, [*map(stamp_of, files)], index))


def test_every_file_has_the_hash_of_its_bytes(folder):
    assert hashes(folder) == {
        name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.png", "b.png")
    }


def test_a_file_is_read_once(folder, read):
    first = hashes(folder)
    assert sorted(read) == ["a.png", "b.png"]
    assert hashes(folder) == first
    assert len(read) == 2


def test_a_changed_file_is_read_again_even_if_size_and_time_are_the_same(folder, read):
    file = folder / "a.png"
    before, times = hashes(folder), file.stat()
    read.clear()
    time.sleep(0.02)
    file.write_text("A.png")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = hashes(folder)
    assert read == ["a.png"]
    assert after["a.png"] != before["a.png"]
    assert after["b.png"] == before["b.png"]


def test_a_file_that_was_just_written_is_not_trusted_yet(folder, read, monkeypatch):
    monkeypatch.setattr(file_hashes, "SETTLED", 10**12)
    hashes(folder)
    hashes(folder)
    assert len(read) == 4


def test_new_and_removed_files_are_noticed(folder, read):
    hashes(folder)
    read.clear()
    (folder / "a.png").unlink()
    (folder / "c.png").write_text("c")
    assert [*hashes(folder)] == ["b.png", "c.png"]
    assert read == ["c.png"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": 99, "files": []}', '{"format": 1, "files": [["a.png"]]}'],
)
def test_an_index_that_cannot_be_understood_is_made_anew(folder, read, content):
    first = hashes(folder)
    (folder.parent / "index.json").write_text(content)
    read.clear()
    assert hashes(folder) == first
    assert len(read) == 2
    assert hashes(folder) == first
    assert len(read) == 2


def test_where_nothing_can_be_written_files_are_read_each_time(folder, read):
    (folder.parent / "index.json").mkdir()
    assert hashes(folder) == hashes(folder)
    assert len(read) == 4


def test_a_file_that_cannot_be_read_is_named(folder):
    (folder / "a.png").unlink()
    (folder / "a.png").symlink_to(folder / "nowhere")
    with pytest.raises(DataError, match=r"a\.png' cannot \(No such file"):
        hashes(folder)
