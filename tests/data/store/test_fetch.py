"""Data sets from a server into place: whole, correct and once, or not at all."""

import gzip
import hashlib
import io
import threading
import warnings
import zipfile
from dataclasses import replace

import pytest
from serving import serving

from fedbridge.base.files import StorageError
from fedbridge.data.store import download as module
from fedbridge.data.store.catalogue import (
    CATALOGUE,
    Content,
    DataSet,
    Domain,
    Download,
    Files,
    ImageTree,
)
from fedbridge.data.store.download import FetchError, Patience, fetch_dataset

QUICK = Patience(connect=2, read=0.3, tries=2, pause=0.001)
PIXELS = bytes(range(256)) * 2000
TEXT = b"1,2,3\n"


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path / "data"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def server():
    with serving() as running:
        yield running


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def known(path, content):
    return Content(path, hashlib.sha256(content).hexdigest(), len(content))


def entry(layout, *routes, **more):
    home = "http://example.org"
    return DataSet("small", "", "", "", home, layout=layout, routes=routes, **more)


@pytest.fixture
def two_files(server, monkeypatch):
    """A data set of two files at two places each; the second file comes zipped."""
    server.put("one/pixels.gz", gzip.compress(PIXELS))
    server.put("two/pixels.gz", gzip.compress(PIXELS, 1))
    for place in ("one", "two"):
        server.put(f"{place}/table.zip", zipped({"top/table.data": TEXT, "readme": b"x"}))
    route = tuple(
        Download(file, (server.address(f"one/{file}"), server.address(f"two/{file}")), size)
        for file, size in (("pixels.gz", 100_000), ("table.zip", 300))
    )
    layout = Files((known("pixels.gz", PIXELS), known("table.data", TEXT)))
    monkeypatch.setitem(CATALOGUE, "small", entry(layout, route))


def fetch(**options):
    return fetch_dataset("small", patience=QUICK, **options)


def files_in(root):
    """All files but the lock, which stays."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


WHOLE = ["small/pixels.gz", "small/table.data"]


@pytest.mark.usefixtures("two_files")
class TestFiles:
    def test_the_set_is_put_in_place_and_nothing_else_is_left(self, root):
        done = fetch()
        assert done.report.ok
        assert not done.already_there
        assert done.report.folder == root / "small"
        assert files_in(root) == WHOLE
        assert gzip.decompress((root / "small/pixels.gz").read_bytes()) == PIXELS

    def test_another_folder(self, tmp_path, root):
        assert fetch(root=tmp_path / "other").report.folder == tmp_path / "other/small"
        assert not root.exists()

    def test_what_is_there_and_correct_is_left_alone(self, root, server):
        fetch()
        server.asked.clear()
        before = (root / "small/pixels.gz").stat().st_ino
        done = fetch()
        assert done.already_there
        assert not server.asked
        assert (root / "small/pixels.gz").stat().st_ino == before

    def test_it_is_left_alone_where_nothing_may_be_written(self, root, monkeypatch):
        fetch()
        monkeypatch.setattr(module, "FileLock", None)
        assert fetch().already_there

    def test_an_empty_folder_is_no_obstacle(self, root):
        (root / "small").mkdir(parents=True)
        assert fetch().report.ok
        assert files_in(root / "small") == ["pixels.gz", "table.data"]

    def test_what_is_there_and_wrong_is_replaced_only_when_asked(self, root):
        fetch()
        (root / "small/table.data").write_bytes(b"1,2,4\n")
        (root / "small/mine.txt").write_bytes(b"")
        with pytest.raises(FetchError, match=r"table.data: expected .* add --force"):
            fetch()
        assert (root / "small/mine.txt").exists()
        assert fetch(force=True).report.ok
        assert files_in(root) == WHOLE

    @pytest.mark.parametrize(
        "behaviour",
        [
            {"answers": [404] * 9},
            {"answers": [500] * 9},
            {"content": b"<!doctype html>Quota exceeded"},
            {"content": gzip.compress(PIXELS[::-1])},
            {"content": gzip.compress(PIXELS)[:-9]},
            {"drops": [10] * 9},
            {"stall": 1.0},
        ],
        ids=["404", "500", "page", "wrong", "truncated", "drops", "stalls"],
    )
    def test_the_mirror_helps_where_the_first_place_fails(self, root, server, behaviour):
        server.put("one/pixels.gz", **{"content": gzip.compress(PIXELS), **behaviour})
        assert fetch().report.ok
        assert files_in(root) == WHOLE

    def test_and_where_its_archive_is_hostile(self, root, server):
        server.put("one/table.zip", zipped({"../../table.data": TEXT}))
        assert fetch().report.ok
        assert files_in(root) == WHOLE

    def test_a_failure_names_every_address_and_the_way_by_hand(self, root, server):
        server.pages.pop("one/pixels.gz")
        server.put("two/pixels.gz", gzip.compress(b"else"))
        with pytest.raises(FetchError) as failed:
            fetch()
        text = str(failed.value)
        assert f"{server.address('one/pixels.gz')}: it answered 404" in text
        assert f"{server.address('two/pixels.gz')}: Expected the published content" in text
        assert "get pixels.gz, table.zip (see http://example.org)" in text
        assert f"put pixels.gz, table.data into {str(root / 'small')!r}" in text
        assert "`fedbridge data check small`" in text
        assert not (root / "small").exists()

    def test_a_failure_with_force_leaves_what_was_there(self, root, server):
        fetch()
        for place in ("one", "two"):
            server.put(f"{place}/table.zip", b"broken")
        with pytest.raises(FetchError, match="damaged"):
            fetch(force=True)
        assert set(WHOLE) <= set(files_in(root))
        assert fetch().report.ok

    def test_the_next_try_goes_on_with_what_arrived(self, root, server):
        content = gzip.compress(PIXELS, 0)
        for place in ("one", "two"):
            server.put(f"{place}/pixels.gz", content, drops=[200_000, 100])
        with pytest.raises(FetchError, match="broke after 200,100 bytes"):
            fetch()
        assert not (root / "small").exists()
        server.asked.clear()
        assert fetch().report.ok
        assert server.asked["one/pixels.gz"] == ["bytes=200100-"]

    def test_files_that_had_arrived_are_not_fetched_again(self, server):
        table = server.pages.pop("one/table.zip")
        server.pages.pop("two/table.zip")
        with pytest.raises(FetchError):
            fetch()
        server.pages["one/table.zip"] = table
        fetch()
        assert len(server.asked["one/pixels.gz"]) == 1

    @pytest.mark.parametrize(
        ("file", "wrong"),
        [
            ("table.zip", zipped({"table.data": b"1,2,4\n"})),
            ("table.zip", b"damaged"),
            ("pixels.gz", gzip.compress(PIXELS[::-1])),
        ],
    )
    def test_wrong_files_are_fetched_again(self, server, file, wrong):
        right = server.pages[f"one/{file}"]
        for place in ("one", "two"):
            server.put(f"{place}/{file}", wrong)
        with pytest.raises(FetchError, match="Expected"):
            fetch()
        server.pages[f"one/{file}"] = right
        server.pages.pop(f"two/{file}")
        assert fetch().report.ok

    def test_an_interrupt_leaves_only_what_one_can_go_on_with(self, root):
        def interrupt(*_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch(progress=interrupt)
        assert not (root / "small").exists()
        assert all("/parts/" in path for path in files_in(root))
        assert fetch().report.ok
        assert files_in(root) == WHOLE

    def test_what_a_killed_fetch_left_is_no_obstacle(self, root):
        left = root / ".fetching/small/staging/route-0-unpacked/pixels.gz"
        left.mkdir(parents=True)
        assert fetch().report.ok
        assert files_in(root) == WHOLE

    def test_two_at_once_do_not_harm_each_other(self, root, server):
        server.pages["one/pixels.gz"].stall = 0.1
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            threads = [threading.Thread(target=lambda: found.append(fetch())) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert [done.report.ok for done in found] == [True] * 3
        assert sorted(done.already_there for done in found) == [False, True, True]
        assert len(server.asked["one/pixels.gz"]) == 1
        assert files_in(root) == WHOLE

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="Could not fetch small"):
            fetch(root=tmp_path / "file")

    def test_another_route_is_taken_when_the_first_ends(self, root, server, monkeypatch):
        server.put("table.data", TEXT)
        (route,) = CATALOGUE["small"].routes
        server.put("one/table.zip", zipped({"table.data": b"1,2,4\n"}))
        other = (route[0], Download("table.data", (server.address("table.data"),), 6))
        monkeypatch.setitem(CATALOGUE, "small", replace(CATALOGUE["small"], routes=(route, other)))
        assert fetch().report.ok
        assert files_in(root) == WHOLE


class TestImages:
    @pytest.fixture
    def images(self, server, monkeypatch):
        def serve(files, **more):
            address = server.put("all.zip", zipped(dict.fromkeys(files, b"x")))
            layout = ImageTree((Domain("photo", 2), Domain("sketch", 1)), 1, ("dog",))
            route = (Download("all.zip", (address,), 1000),)
            monkeypatch.setitem(CATALOGUE, "small", entry(layout, route, **more))

        return serve

    def test_top_folders_go(self, images, root):
        images(["top/photo/dog/1.jpg", "top/photo/dog/2.jpg", "top/sketch/dog/1.jpg"])
        done = fetch()
        assert done.report.ok
        assert done.report.counts == {"photo": 2, "sketch": 1}
        assert files_in(root) == [
            f"small/{path}" for path in ("photo/dog/1.jpg", "photo/dog/2.jpg", "sketch/dog/1.jpg")
        ]

    def test_other_counts_are_kept_and_said(self, images, root):
        images([*(f"photo/dog/{number}.jpg" for number in range(3)), "sketch/dog/1.jpg"])
        done = fetch()
        assert [str(problem) for problem in done.report.problems] == [
            "photo: expected 2 images, but found 3"
        ]
        assert (root / "small").is_dir()

    def test_a_missing_domain_is_not(self, images, root):
        images(["photo/dog/1.jpg", "photo/dog/2.jpg"])
        with pytest.raises(FetchError, match=r"'sketch' in the downloaded files(.|\n)*By hand"):
            fetch()
        assert not (root / "small").exists()

    def test_a_folder_of_other_software_is_found(self, images, root):
        images([], other_names=("SMALL_SET",))
        for path in ("photo/dog/1.jpg", "photo/dog/2.jpg", "sketch/dog/1.jpg"):
            (root / "SMALL_SET" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "SMALL_SET" / path).write_bytes(b"x")
        done = fetch()
        assert done.already_there
        assert done.report.folder == root / "SMALL_SET"


def test_what_is_built_in_needs_no_fetching(root):
    assert fetch_dataset("digits").already_there
    assert not root.exists()
