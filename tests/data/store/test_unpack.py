"""Archives from elsewhere: what they may hold, and every way in which they are refused."""

import gzip
import io
import json
import stat
import tarfile
import zipfile

import pytest

from fedbridge.base.errors import DataError
from fedbridge.base.files import StorageError
from fedbridge.data.store.catalogue import Content, DataSet, Domain, Files, ImageTree
from fedbridge.data.store.unpack import Limits, arrange, is_archive, unpack

FILES = {"top/a.txt": b"a" * 10, "top/b/c.bin": bytes(range(256))}


def zipped(path, files=FILES, **options):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path, members, mode="w:gz"):
    """Members are (TarInfo or name, content)."""
    with tarfile.open(path, mode) as archive:
        for info, content in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            if content is not None:
                info.size = len(content)
            archive.addfile(info, None if content is None else io.BytesIO(content))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def flip(file, position):
    """Change the lowest bit of a byte."""
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "here" / "out"


@pytest.fixture
def refused(folder, tmp_path):
    """Unpacking fails with these words, and nothing is left of it anywhere."""

    def check(archive, words, limits=None, error=DataError):
        before = {path for path in tmp_path.rglob("*") if path != folder.parent}
        with pytest.raises(error, match=words):
            unpack(archive, folder, limits)
        assert {path for path in tmp_path.rglob("*") if path != folder.parent} == before

    return check


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz"])
def test_plain_files_come_out_as_they_went_in(tmp_path, folder, name):
    if name == "a.zip":
        archive = zipped(tmp_path / name)
    else:
        archive = tarred(tmp_path / name, FILES.items(), "w" if name == "a.tar" else "w:gz")
    assert is_archive(archive)
    unpack(archive, folder)
    assert contents(folder) == FILES


def test_only_some_names_are_archives(tmp_path):
    assert not is_archive(tmp_path / "images-idx3-ubyte.gz")
    assert not is_archive(tmp_path / "weights.pth")


def test_folders_and_the_dot_of_tar_are_harmless(tmp_path, folder):
    members = [(special("./", tarfile.DIRTYPE), None), (special("./top", tarfile.DIRTYPE), None)]
    unpack(tarred(tmp_path / "a.tar.gz", [*members, ("./top/a", b"x")]), folder)
    assert contents(folder) == {"top/a": b"x"}


def test_permissions_in_the_archive_mean_nothing(tmp_path, folder):
    info = tarfile.TarInfo("a")
    info.mode = 0o6777
    unpack(tarred(tmp_path / "a.tar.gz", [(info, b"x")]), folder)
    assert not (folder / "a").stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)


class TestPaths:
    NAMES = ("../x", "a/../../x", "/x", "C:/x", "\\x", "..\\x", "//server/x")

    @pytest.mark.parametrize("name", NAMES)
    def test_no_path_leaves_the_folder_of_a_zip(self, tmp_path, refused, name):
        refused(zipped(tmp_path / "a.zip", {"ok": b"", name: b"x"}), "leads out of the folder")

    @pytest.mark.parametrize("name", NAMES)
    def test_no_path_leaves_the_folder_of_a_tar(self, tmp_path, refused, name):
        archive = tarred(tmp_path / "a.tar.gz", [("ok", b""), (name, b"x")])
        refused(archive, "leads out of the folder")

    @pytest.mark.parametrize(
        ("kind", "target"),
        [
            (tarfile.SYMTYPE, "/etc/passwd"),
            (tarfile.SYMTYPE, "ok"),
            (tarfile.LNKTYPE, "ok"),
            (tarfile.LNKTYPE, "../../x"),
            (tarfile.CHRTYPE, ""),
            (tarfile.BLKTYPE, ""),
            (tarfile.FIFOTYPE, ""),
        ],
    )
    def test_no_links_and_no_devices_in_a_tar(self, tmp_path, refused, kind, target):
        archive = tarred(tmp_path / "a.tar.gz", [("ok", b""), (special("x", kind, target), None)])
        refused(archive, "'x' is a link, a device")

    @pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
    def test_no_links_and_no_devices_in_a_zip(self, tmp_path, refused, kind):
        info = zipfile.ZipInfo("x")
        info.external_attr = (kind | 0o777) << 16
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(info, "/etc/passwd")
        refused(tmp_path / "a.zip", "'x' is a link or a device")


class TestTwice:
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_name_comes_once_in_a_zip(self, tmp_path, refused):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("a", "1")
            archive.writestr("a", "2")
        refused(tmp_path / "a.zip", "'a' twice")

    @pytest.mark.parametrize("second", ["a", "./a", "a/b"])
    def test_a_name_comes_once_in_a_tar(self, tmp_path, refused, second):
        refused(tarred(tmp_path / "a.tar.gz", [("a", b"1"), (second, b"2")]), f"'{second}' twice")

    def test_a_folder_does_not_become_a_file(self, tmp_path, refused):
        refused(tarred(tmp_path / "a.tar.gz", [("a/b", b"1"), ("a", b"2")]), "'a' twice")


class TestBombs:
    ZEROS = bytes(20_000_000)

    def test_a_zip_that_grows_too_much(self, tmp_path, refused):
        refused(zipped(tmp_path / "a.zip", {"a": self.ZEROS}), "holds more than")

    def test_a_tar_that_grows_too_much(self, tmp_path, refused):
        refused(tarred(tmp_path / "a.tar.gz", [("a", self.ZEROS)]), "holds more than")

    def test_a_zip_that_says_less_than_it_holds(self, tmp_path, refused):
        archive = zipped(tmp_path / "a.zip", {"a": bytes(5_000)})
        size = (5_000).to_bytes(4, "little")
        archive.write_bytes(archive.read_bytes().replace(size, (50).to_bytes(4, "little")))
        refused(archive, "damaged")

    def test_a_header_that_would_fill_the_memory(self, tmp_path, refused):
        header = special("x", tarfile.XHDTYPE)
        header.size = 10**9
        with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
            file.write(header.tobuf() + bytes(1 << 20))
        refused(tmp_path / "a.tar.gz", "holds more than")

    def test_bytes_without_end_after_the_last_file(self, tmp_path, refused):
        archive = tarred(tmp_path / "a.tar.gz", [("a", b"x")])
        with gzip.open(archive, "ab") as file:
            file.write(bytes(30_000_000))
        refused(archive, "holds more than")

    def test_limits_of_size_and_files(self, tmp_path, refused):
        archive = zipped(tmp_path / "a.zip")
        refused(archive, "more than 100 bytes", Limits(size=100))
        refused(archive, "more than 3 files", Limits(files=3))

    def test_text_that_shrinks_well_is_no_bomb(self, tmp_path, folder):
        text = b"".join(b'{"id": %d, "category": "empty"},\n' % k for k in range(100_000))
        unpack(zipped(tmp_path / "a.zip", {"a.json": text}), folder)
        assert contents(folder) == {"a.json": text}


class TestDamage:
    @pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar"])
    def test_something_else_entirely(self, tmp_path, refused, name):
        (tmp_path / name).write_bytes(b"<html>Quota exceeded</html>")
        refused(tmp_path / name, "damaged")

    @pytest.mark.parametrize("keep", [0, 5, 60, 200, -4])
    def test_a_truncated_archive(self, tmp_path, refused, keep):
        noise = bytes((k * k * 31 + k // 7) % 256 for k in range(3000))
        for archive in (
            zipped(tmp_path / "a.zip", {"a": noise}),
            tarred(tmp_path / "a.tar.gz", [("a", noise)]),
        ):
            archive.write_bytes(archive.read_bytes()[:keep])
            refused(archive, "damaged")

    def test_a_wrong_checksum(self, tmp_path, refused):
        archive = zipped(tmp_path / "a.zip", {"a": b"x" * 100})
        flip(archive, archive.read_bytes().rfind(b"PK\x01\x02") + 16)
        refused(archive, "damaged")
        archive = tarred(tmp_path / "a.tar.gz", FILES.items())
        flip(archive, -8)
        refused(archive, "damaged")

    def test_an_encrypted_zip(self, tmp_path, refused):
        archive = zipped(tmp_path / "a.zip", {"a": b"x"})
        flip(archive, archive.read_bytes().rfind(b"PK\x01\x02") + 8)
        refused(archive, "'a' is encrypted")

    def test_too_little_space(self, tmp_path, refused, monkeypatch):
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
        refused(zipped(tmp_path / "a.zip"), "10: free some space", error=StorageError)


def entry(layout, arrangement="as-packed"):
    return DataSet("small", "", "", "", layout=layout, arrangement=arrangement)


def put(folder, *paths, content=b"x"):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.fixture
def unpacked(tmp_path):
    return tmp_path / "unpacked"


@pytest.fixture
def arranged(unpacked, tmp_path):
    """The files of a data set after it was arranged."""

    def files(of):
        folder = tmp_path / "arranged"
        arrange(of, unpacked, folder)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))

    return files


class TestAsPacked:
    DOMAINS = ImageTree((Domain("photo", 1), Domain("Real World", 1)), 1)

    @pytest.mark.parametrize("top", ["a.zip", "a.zip/kfold", "a.zip/x/y"])
    def test_top_folders_go(self, unpacked, arranged, top):
        put(unpacked / top, "photo/dog/1.jpg", "Real World/dog/1.jpg", "imagelist.txt")
        assert arranged(entry(self.DOMAINS)) == ["Real World/dog/1.jpg", "photo/dog/1.jpg"]

    def test_domains_may_come_in_files_of_their_own(self, unpacked, arranged):
        put(unpacked, "p.zip/photo/dog/1.jpg", "r.zip/Real World/dog/1.jpg")
        assert arranged(entry(self.DOMAINS)) == ["Real World/dog/1.jpg", "photo/dog/1.jpg"]

    def test_a_domain_that_is_not_there(self, unpacked, arranged):
        put(unpacked, "a.zip/photo/dog/1.jpg")
        with pytest.raises(DataError, match="Expected 'Real World' in the downloaded files"):
            arranged(entry(self.DOMAINS))

    def test_known_files_only(self, unpacked, arranged):
        layout = Files((Content("sub/a.bin", ""), Content("b.data", "")))
        put(unpacked, "a.tar.gz/sub/a.bin", "a.tar.gz/readme.html", "b.data/b.data")
        assert arranged(entry(layout)) == ["b.data", "sub/a.bin"]


def test_only_listed_images_are_kept(unpacked, arranged):
    put(unpacked, "photo.zip/photo/big dog/1.jpg", "photo.zip/photo/big dog/2.jpg")
    put(unpacked, "photo_train.txt/photo_train.txt", content=b"photo/big dog/1.jpg 0\n")
    layout = ImageTree((Domain("photo", 1),), 1)
    assert arranged(entry(layout, "listed")) == ["photo/big dog/1.jpg"]


ANNOTATIONS = {
    "categories": [
        {"id": 1, "name": "cat"},
        {"id": 2, "name": "dog"},
        {"id": 3, "name": "car"},
    ],
    "images": [
        {"id": "a", "location": "38", "file_name": "a.jpg"},
        {"id": "b", "location": 46, "file_name": "b.jpg"},
        {"id": "c", "location": "99", "file_name": "c.jpg"},
        {"id": "d", "location": "38", "file_name": "d.jpg"},
        {"id": "e", "location": "38", "file_name": "../../e.jpg"},
    ],
    "annotations": [
        {"image_id": "a", "category_id": 1},
        {"image_id": "a", "category_id": 1},
        {"image_id": "a", "category_id": 2},
        {"image_id": "b", "category_id": 2},
        {"image_id": "c", "category_id": 1},
        {"image_id": "d", "category_id": 3},
        {"image_id": "e", "category_id": 1},
    ],
}


class TestCameraTraps:
    LAYOUT = ImageTree((Domain("location_38", 2), Domain("location_46", 1)), 2, ("cat", "dog"))

    def prepare(self, unpacked, annotations):
        put(unpacked / "images.tar.gz/sm", *(f"{name}.jpg" for name in "abcde"))
        put(unpacked, "labels.json.zip/labels.json", content=annotations)

    def test_images_go_where_annotations_put_them(self, unpacked, arranged):
        self.prepare(unpacked, json.dumps(ANNOTATIONS).encode())
        assert arranged(entry(self.LAYOUT, "camera-traps")) == [
            "location_38/cat/a.jpg",
            "location_38/dog/a.jpg",
            "location_46/dog/b.jpg",
        ]

    @pytest.mark.parametrize(
        "annotations", [b"<html>", b"[]", b"{}", b'{"categories": 1}', b"\xff\xfe\xfd"]
    )
    def test_other_content_is_refused(self, unpacked, arranged, annotations):
        self.prepare(unpacked, annotations)
        with pytest.raises(DataError, match=r"Expected labels.json to hold annotations"):
            arranged(entry(self.LAYOUT, "camera-traps"))
