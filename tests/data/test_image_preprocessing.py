"""How images become rows is decided once, saved, and found again."""

import json

import numpy as np
import pytest
from pictures import TINY, noise_image, register_tiny_backbone, write_images

from fedbridge.data import parallel
from fedbridge.data.image_preprocessing import CHUNK, ImagePreprocessing, is_for_images
from fedbridge.data.preprocessing import Preprocessing
from fedbridge.errors import DataError, ModelError


@pytest.fixture
def tiny(monkeypatch):
    register_tiny_backbone(monkeypatch)
    return ImagePreprocessing.from_options(None, False, TINY, 32)


@pytest.fixture
def many(tmp_path):
    for k in range(2 * CHUNK + 3):
        noise_image(tmp_path / f"{k:02}.png", seed=k)
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("backbone", [None, TINY])
def test_rows_do_not_depend_on_the_number_of_cores(many, monkeypatch, tiny, backbone):
    how = ImagePreprocessing(8) if backbone is None else tiny
    results = []
    for cores in (1, 3):
        monkeypatch.setattr(parallel, "core_count", lambda cores=cores: cores)
        results.append(how.rows(many, "site"))
    assert results[0].shape == (len(many), *how.row_shape)
    assert results[0].dtype == how.row_type
    np.testing.assert_array_equal(*results)


def test_rows_come_in_chunks(many):
    lengths = [len(chunk) for chunk in ImagePreprocessing(8).chunks(many, "site")]
    assert lengths == [CHUNK, CHUNK, 3]


def test_a_backbone_brings_its_size_and_width(tiny):
    assert tiny == ImagePreprocessing(8, False, TINY, "tiny-1")
    assert (tiny.row_shape, tiny.row_type) == ((3,), np.float32)


def test_an_image_or_a_folder_can_be_new_data(tmp_path):
    write_images(tmp_path, ["a"], ["cat"], count=2)
    (tmp_path / "a" / "._0.png").write_text("not an image")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    names, rows = ImagePreprocessing(4, grayscale=True).apply(tmp_path)
    assert names == ["a/cat/0.png", "a/cat/1.png"]
    assert rows.shape == (2, 1, 4, 4)
    names, rows = ImagePreprocessing(4).apply(tmp_path / "a" / "cat" / "1.png")
    assert (names, rows.shape) == (["1.png"], (1, 3, 4, 4))


class TestSaved:
    @pytest.mark.parametrize(
        "how", [ImagePreprocessing(8, True), ImagePreprocessing(9, False, TINY, "tiny-1")]
    )
    def test_it_survives(self, how):
        assert is_for_images(how.to_json())
        assert ImagePreprocessing.from_json(how.to_json()) == how

    def test_that_of_a_table_is_another_kind(self):
        assert not is_for_images(Preprocessing("a", (), "label", None).to_json())
        assert not is_for_images("not JSON")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": 99}, "Expected preprocessing of format 1, but got 99"),
            ({"size": 0}, "damaged"),
            ({"size": "8"}, "damaged"),
            ({"backbone": 3}, "damaged"),
        ],
    )
    def test_anything_else_is_refused(self, change, message):
        content = json.loads(ImagePreprocessing(8).to_json())
        with pytest.raises(DataError, match=message):
            ImagePreprocessing.from_json(json.dumps(content | change))

    def test_a_missing_entry_is_refused(self):
        content = json.loads(ImagePreprocessing(8).to_json())
        del content["grayscale"]
        with pytest.raises(DataError, match="damaged"):
            ImagePreprocessing.from_json(json.dumps(content))

    def test_a_backbone_with_other_weights_is_refused(self, tiny, tmp_path, monkeypatch):
        noise_image(tmp_path / "a.png")
        register_tiny_backbone(monkeypatch, weights="2")
        with pytest.raises(ModelError, match=r"Expected the backbone 'tiny-1'.* is 'tiny-2'"):
            tiny.apply(tmp_path / "a.png")
