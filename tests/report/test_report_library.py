"""The chart library: packed once, kept, and packed again when what was kept is broken."""

import gzip

import pytest

from fedbridge.base.errors import ReportError
from fedbridge.report import page

SCRIPT = b"window.vegaEmbed = 1;"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a packing that takes no time and counts itself."""
    packings = []
    monkeypatch.setattr(page, "cache_folder", lambda: tmp_path / "charts")
    monkeypatch.setattr(page, "_packing", lambda: packings.append(1) or SCRIPT)
    return tmp_path / "charts", packings


def fresh():
    """The library as a new process would see it."""
    return gzip.decompress(page._library.__wrapped__())


def test_it_is_packed_once_and_then_read(cache):
    folder, packings = cache
    assert [fresh(), fresh()] == [SCRIPT, SCRIPT]
    assert len(packings) == 1
    (file,) = folder.iterdir()
    assert page.version(page.PACKAGE) in file.name


@pytest.mark.parametrize("broken", [b"", b"not gzip", gzip.compress(SCRIPT, mtime=0)[:-6]])
def test_a_broken_file_is_packed_again(cache, broken):
    folder, packings = cache
    fresh()
    (file,) = folder.iterdir()
    file.write_bytes(broken)
    assert fresh() == SCRIPT
    assert len(packings) == 2
    assert gzip.decompress(file.read_bytes()) == SCRIPT


def test_a_cache_that_cannot_be_written_is_no_error(cache):
    folder, _ = cache
    folder.write_text("a file where the folder should be")
    assert fresh() == SCRIPT


def test_a_failure_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr(page, "PACKING", "raise SystemExit('no engine')")
    with pytest.raises(ReportError, match="no engine"):
        page._packing()
