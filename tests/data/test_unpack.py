"""Archives from elsewhere: what they may hold, and every way in which they are refused."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from fedbridge.data.unpack import Limits, is_archive, unpack
from fedbridge.errors import DataError
from fedbridge.files import StorageError

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
