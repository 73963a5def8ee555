"""Checks of data on disk: by content, file by file, domain by domain."""

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from fedbridge.base.errors import UnknownNameError
from fedbridge.data.store.catalogue import CATALOGUE, Content, DataSet, Domain, Files, ImageTree
from fedbridge.data.store.verify import check_dataset, check_folder

PIXELS = bytes(range(256)) * 100
TEXT = b"1,2,3\n"
REAL = Path(os.environ.get("FEDBRIDGE_DATA", ""))


def entry(layout):
    return DataSet("small", "small", "", "", layout=layout)


def known(path, content):
    return Content(path, hashlib.sha256(content).hexdigest(), len(content))


FILES = entry(Files((known("sub/pixels.gz", PIXELS), known("table.data", TEXT))))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/pixels.gz").write_bytes(gzip.compress(PIXELS))
    (tmp_path / "table.data").write_bytes(TEXT)
    return tmp_path


def said(report):
    return [str(problem) for problem in report.problems]


class TestFiles:
    def test_the_published_content_is_fine(self, folder):
        report = check_folder(FILES, folder)
        assert report.ok
        assert set(report.counts) == {"sub/pixels.gz", "table.data"}

    def test_the_wrapper_does_not_matter(self, folder):
        (folder / "sub/pixels.gz").write_bytes(gzip.compress(PIXELS, compresslevel=1, mtime=7))
        assert check_folder(FILES, folder).ok
        (folder / "sub/pixels.gz").unlink()
        (folder / "sub/pixels").write_bytes(PIXELS)
        assert check_folder(FILES, folder).ok

    def test_a_missing_file(self, folder):
        (folder / "table.data").unlink()
        report = check_folder(FILES, folder)
        assert said(report) == ["table.data: expected a file, but found none"]
        assert not report.worth_keeping

    def test_a_truncated_wrapper(self, folder):
        file = folder / "sub/pixels.gz"
        file.write_bytes(file.read_bytes()[:-20])
        (text,) = said(check_folder(FILES, folder))
        assert text.startswith("sub/pixels.gz: expected a whole gzip file, but found a damaged one")

    def test_no_wrapper_at_all(self, folder):
        (folder / "sub/pixels.gz").write_bytes(b"<html>")
        assert "a damaged one" in said(check_folder(FILES, folder))[0]

    @pytest.mark.parametrize(
        ("content", "found"), [(TEXT[:-1], "found 5"), (TEXT + b"x", "found more")]
    )
    def test_another_size(self, folder, content, found):
        (folder / "table.data").write_bytes(content)
        (text,) = said(check_folder(FILES, folder))
        assert text.startswith("table.data: expected 6 bytes of content")
        assert text.endswith(found)

    def test_a_gzip_bomb_is_not_read_to_its_end(self, folder):
        bomb = gzip.compress(bytes(10_000_000))
        (folder / "sub/pixels.gz").write_bytes(bomb[:-100])
        assert said(check_folder(FILES, folder))[0].endswith("found more")

    def test_other_bytes_of_the_same_size(self, folder):
        (folder / "table.data").write_bytes(b"1,2,4\n")
        (text,) = said(check_folder(FILES, folder))
        assert known("", TEXT).sha256 in text
        assert known("", b"1,2,4\n").sha256 in text

    def test_a_few_digits_of_the_checksum_are_enough(self, folder):
        digits = known("", TEXT).sha256[:8]
        assert check_folder(entry(Files((Content("table.data", digits),))), folder).ok
        wrong = check_folder(entry(Files((Content("table.data", "01234567"),))), folder)
        assert said(wrong) == [
            f"table.data: expected content with sha256 01234567, but found {digits}"
        ]


class TestImages:
    TREE = ImageTree((Domain("photo", 3), Domain("sketch", 2, also=(4,))), 2, ("cat", "dog"))

    @pytest.fixture
    def tree(self, tmp_path):
        for path in ("photo/cat/1.jpg", "photo/cat/2.PNG", "photo/dog/1.jpeg"):
            self.put(tmp_path, path)
        for path in ("sketch/cat/1.jpg", "sketch/dog/1.jpg"):
            self.put(tmp_path, path)
        return tmp_path

    def put(self, folder, path, content=b"x"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    def check(self, tree, **changes):
        layout = ImageTree(**{**self.TREE.__dict__, **changes})
        return check_folder(entry(layout), tree)

    def test_the_published_counts_are_fine(self, tree):
        report = self.check(tree)
        assert report.ok
        assert report.counts == {"photo": 3, "sketch": 2}

    def test_hidden_files_and_others_do_not_count(self, tree):
        for path in ("photo/cat/.3.jpg", "photo/cat/Thumbs.db", "photo/.git/x.jpg"):
            self.put(tree, path)
        assert self.check(tree).ok

    def test_other_published_counts_are_fine_too(self, tree):
        self.put(tree, "sketch/dog/2.jpg")
        self.put(tree, "sketch/dog/3.jpg")
        assert self.check(tree).ok

    def test_a_few_images_more_are_minor(self, tree):
        self.put(tree, "sketch/dog/2.jpg")
        report = self.check(tree)
        assert said(report) == ["sketch: expected 2 or 4 images, but found 3"]
        assert report.worth_keeping

    @pytest.mark.parametrize(("images", "minor"), [(100, True), (80, False)])
    def test_so_are_a_few_less(self, tree, images, minor):
        for number in range(images - 3):
            self.put(tree, f"photo/cat/{number}-more.jpg")
        report = self.check(tree, domains=(Domain("photo", 101), Domain("sketch", 2)))
        assert said(report) == [f"photo: expected 101 images, but found {images}"]
        assert report.worth_keeping == minor

    def test_an_empty_image_does_not_count(self, tree):
        self.put(tree, "photo/cat/1.jpg", b"")
        assert said(self.check(tree)) == ["photo: expected 3 images, but found 2"]

    def test_a_link_to_nowhere_does_not_count(self, tree):
        (tree / "photo/cat/1.jpg").unlink()
        (tree / "photo/cat/1.jpg").symlink_to(tree / "nowhere.jpg")
        assert said(self.check(tree)) == ["photo: expected 3 images, but found 2"]

    def test_a_missing_domain(self, tree):
        (tree / "sketch").rename(tree / "Sketches")
        report = self.check(tree)
        assert said(report) == [
            "sketch: expected a folder with one folder per class, but found none"
        ]
        assert not report.worth_keeping

    @pytest.mark.parametrize("classes", [("cat", "dog"), ()])
    def test_a_missing_class(self, tree, classes):
        (tree / "sketch/dog/1.jpg").rename(tree / "sketch/cat/2.jpg")
        report = self.check(tree, classes=classes)
        assert said(report) == ["sketch/dog: expected images of this class, but found none"]

    def test_a_class_that_is_none(self, tree):
        (tree / "sketch/dog").rename(tree / "sketch/hound")
        assert "sketch/hound: expected one of the classes cat, dog, but found hound" in said(
            self.check(tree)
        )

    def test_the_number_of_classes(self, tree):
        texts = said(self.check(tree, classes=(), n_classes=3))
        assert texts == [".: expected 3 classes in all domains, but found 2"]


class TestByName:
    def test_where_it_is_looked_for(self, folder, monkeypatch, tmp_path):
        monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path / "data"))
        monkeypatch.setitem(CATALOGUE, "small", FILES)
        report = check_dataset("small")
        assert not report.ok
        assert said(report) == [f"{tmp_path / 'data/small'}: expected a folder, but found none"]
        assert check_dataset("small", folder).ok

    def test_another_name_of_the_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
        (tmp_path / "PACS").mkdir()
        report = check_dataset("pacs")
        assert report.folder == tmp_path / "PACS"
        assert len(report.problems) >= 4

    def test_what_needs_no_files_is_fine(self):
        assert check_dataset("digits").ok

    def test_an_unknown_name(self):
        with pytest.raises(UnknownNameError, match="Did you mean 'heart'"):
            check_dataset("hearts")


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist", "cifar10", "heart"])
def test_the_real_data_are_as_published(name):
    if not (REAL / name).is_dir() or not os.environ.get("FEDBRIDGE_DATA"):
        pytest.skip(f"FEDBRIDGE_DATA does not hold {name}")
    assert said(check_dataset(name)) == []
