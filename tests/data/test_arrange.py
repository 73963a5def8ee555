"""From what archives hold to the layout of the catalogue."""

import json

import pytest

from fedbridge.data.arrange import arrange
from fedbridge.data.catalogue import Content, DataSet, Domain, Files, ImageTree
from fedbridge.errors import DataError


def entry(layout, arrangement="as-packed"):
    return DataSet(
        "small", "", (), (), None, None, "", "", "", layout=layout, arrangement=arrangement
    )


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
