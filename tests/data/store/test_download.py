"""One file over HTTP, from servers that break off, lie, stall and change their mind."""

import json

import pytest
from serving import serving

from fedbridge.base.files import StorageError
from fedbridge.data.store import download as module
from fedbridge.data.store.download import DownloadError, Patience, download

QUICK = Patience(connect=2, read=0.3, tries=3, pause=0.001)
CONTENT = bytes(range(256)) * 4000


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    with serving() as running:
        yield running


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a.bin"


def fetch(address, file, **options):
    download(address, file, **{"size": len(CONTENT), "patience": QUICK} | options)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


class TestWhole:
    def test_a_file_arrives_and_nothing_else_is_left(self, server, file):
        fetch(server.put("a", CONTENT), file)
        assert file.read_bytes() == CONTENT
        assert left_in(file.parent) == ["a.bin"]

    def test_progress_is_told_up_to_the_end(self, server, file):
        told = []
        fetch(server.put("a", CONTENT), file, progress=lambda *seen: told.append(seen))
        assert told[-1] == ("a.bin", len(CONTENT), len(CONTENT))
        assert [have for _, have, _ in told] == sorted(have for _, have, _ in told)

    def test_a_server_need_not_say_how_much_it_is(self, server, file):
        fetch(server.put("a", CONTENT, measured=False), file)
        assert file.read_bytes() == CONTENT

    def test_an_empty_file_is_a_file(self, server, file):
        fetch(server.put("a", b""), file)
        assert file.read_bytes() == b""


class TestResume:
    def test_a_broken_download_goes_on_where_it_stopped(self, server, file):
        fetch(server.put("a", CONTENT, drops=[300_000, 500_000]), file)
        assert file.read_bytes() == CONTENT
        assert server.asked["a"] == [None, "bytes=300000-", "bytes=800000-"]

    def test_a_later_call_goes_on_too(self, server, file):
        address = server.put("a", CONTENT, drops=[300_000])
        with pytest.raises(DownloadError, match="broke after 300,000 bytes"):
            fetch(address, file, patience=Patience(read=0.3, tries=1))
        assert left_in(file.parent) == ["a.bin.part", "a.bin.part.json"]
        fetch(address, file)
        assert file.read_bytes() == CONTENT
        assert server.asked["a"][-1] == "bytes=300000-"

    @pytest.mark.parametrize(
        ("behaviour", "second"),
        [
            ({"ranges": False}, "bytes=300000-"),
            ({"etag": None}, None),
            ({"etag": 'W/"weak"'}, None),
        ],
        ids=["ignores Range", "names no version", "names versions weakly"],
    )
    def test_else_it_starts_over(self, server, file, behaviour, second):
        fetch(server.put("a", CONTENT, drops=[300_000], **behaviour), file)
        assert file.read_bytes() == CONTENT
        assert server.asked["a"] == [None, second]

    @pytest.mark.parametrize("honest", [True, False])
    def test_a_file_that_changed_starts_over(self, server, file, honest):
        address = server.put("a", CONTENT, drops=[300_000])
        with pytest.raises(DownloadError):
            fetch(address, file, patience=Patience(read=0.3, tries=1))
        changed = CONTENT[::-1]
        server.put("a", changed, etag='"second"', honest=honest)
        fetch(address, file)
        assert file.read_bytes() == changed

    def test_a_file_that_became_shorter_starts_over(self, server, file):
        address = server.put("a", CONTENT, drops=[300_000])
        with pytest.raises(DownloadError):
            fetch(address, file, patience=Patience(read=0.3, tries=1))
        server.put("a", CONTENT[:1000], etag='"second"', honest=False)
        fetch(address, file)
        assert file.read_bytes() == CONTENT[:1000]

    def test_what_had_arrived_whole_is_not_fetched_again(self, server, file):
        address = server.put("a", CONTENT)
        file.with_name("a.bin.part").write_bytes(CONTENT)
        note = {"address": address, "validator": '"first"'}
        file.with_name("a.bin.part.json").write_text(json.dumps(note))
        told = []
        fetch(address, file, progress=lambda *seen: told.append(seen))
        assert file.read_bytes() == CONTENT
        assert told == []

    @pytest.mark.parametrize("note", ["", "[]", "{", '{"address": "other", "validator": "x"}'])
    def test_a_part_of_unknown_origin_is_not_used(self, server, file, note):
        file.with_name("a.bin.part").write_bytes(b"something else")
        file.with_name("a.bin.part.json").write_text(note)
        fetch(server.put("a", CONTENT), file)
        assert file.read_bytes() == CONTENT


class TestFailures:
    def test_an_error_of_the_server_is_tried_again(self, server, file):
        fetch(server.put("a", CONTENT, answers=[500, 503]), file)
        assert file.read_bytes() == CONTENT

    def test_but_not_for_ever(self, server, file):
        with pytest.raises(DownloadError, match="answered 503"):
            fetch(server.put("a", CONTENT, answers=[503] * 9), file)
        assert len(server.asked["a"]) == QUICK.tries

    @pytest.mark.parametrize("status", [403, 404, 410])
    def test_a_refusal_is_not_tried_again(self, server, file, status):
        with pytest.raises(DownloadError, match=f"answered {status}"):
            fetch(server.put("a", CONTENT, answers=[status] * 2), file)
        assert len(server.asked["a"]) == 1

    def test_a_server_that_stalls(self, server, file):
        with pytest.raises(DownloadError, match="not answer in time"):
            fetch(server.put("a", CONTENT, stall=1.0), file)

    def test_no_server(self, file):
        with pytest.raises(DownloadError, match="connection failed"):
            fetch("http://127.0.0.1:9/a", file)

    @pytest.mark.parametrize("page", [b"<!DOCTYPE html><p>Quota exceeded", b"\n <HTML><body>"])
    def test_a_web_page_is_not_data(self, server, file, page):
        with pytest.raises(DownloadError, match="web page"):
            fetch(server.put("a", page), file)
        assert left_in(file.parent) == []

    @pytest.mark.parametrize("measured", [True, False])
    def test_far_more_than_expected_is_refused(self, server, file, measured):
        with pytest.raises(DownloadError, match="sends more than"):
            fetch(server.put("a", CONTENT, measured=measured), file, size=100)
        assert left_in(file.parent) == []

    @pytest.mark.parametrize("address", ["ftp://x/a", "file:///etc/passwd", "a", ""])
    def test_only_http_is_fetched(self, file, address):
        with pytest.raises(DownloadError, match="http"):
            fetch(address, file)

    def test_too_little_space_is_said_before(self, server, file, monkeypatch):
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
        with pytest.raises(StorageError, match="10: free some space"):
            fetch(server.put("a", CONTENT), file)

    def test_a_full_disk_is_said_and_what_arrived_stays(self, server, file, monkeypatch):
        address = server.put("a", CONTENT)

        def full(name, have, total):
            raise OSError(28, "No space left on device")

        with pytest.raises(StorageError, match="No space left on device; free some space"):
            fetch(address, file, progress=full)
        assert file.with_name("a.bin.part").stat().st_size > 0
        fetch(address, file)
        assert file.read_bytes() == CONTENT

    def test_pauses_grow(self, server, file, monkeypatch):
        pauses = []
        monkeypatch.setattr(module.time, "sleep", pauses.append)
        with pytest.raises(DownloadError):
            fetch(server.put("a", CONTENT, answers=[500] * 9), file, patience=Patience(tries=4))
        assert pauses == [1, 2, 4]
