"""DomainBed's suites on small trees of the same layout."""

import pytest
from pictures import TINY, register_tiny_backbone, write_images

import fedbridge as fb
from fedbridge.base.errors import DataError, OptionError, TargetNeededError, UnknownNameError
from fedbridge.data.builtin.domainbed import SUITES
from fedbridge.data.load import load_task, possible_targets, summary_of
from fedbridge.data.preparing import Augment, InTurn, PixelsToUnit
from fedbridge.models import build_model

DOMAINS = {
    "vlcs": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    "terra": ("location_100", "location_38", "location_43", "location_46"),
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "office-home": ("Art", "Clipart", "Product", "Real World"),
    "domainnet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
}
SMALL = {"image_size": 8}
COUNT = 10


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty data folder of the test's own."""
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
    return tmp_path


def suite(name):
    return next(suite for suite in SUITES if suite.name == name)


def write_suite(root, name, folder=None, count=COUNT):
    classes = suite(name).layout.classes or ("Alarm_Clock", "Backpack", "Bed")
    return write_images(root / (folder or name), DOMAINS[name], classes, count, "jpg")


@pytest.mark.parametrize("name", DOMAINS)
def test_every_domain_can_be_the_target(root, name):
    assert possible_targets(name) == DOMAINS[name]
    write_suite(root, name)
    for target in DOMAINS[name]:
        task = load_task(name, target, target_fraction=0.5, **SMALL)
        assert (task.name, task.target.name) == (name, target)
        assert task.source_names == tuple(d for d in DOMAINS[name] if d != target)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("pacs", "PACS"),
        ("vlcs", "VLCS"),
        ("terra", "terra_incognita"),
        ("office-home", "office_home"),
        ("domainnet", "domain_net"),
    ],
)
def test_folders_may_have_the_names_that_domainbed_gives_them(root, name, folder):
    write_suite(root, name, folder)
    task = load_task(name, DOMAINS[name][0], target_fraction=0.5, **SMALL)
    assert (task.name, task.manifest["origin"]) == (name, folder)


@pytest.mark.parametrize(
    ("name", "labelled", "model", "warmup"),
    [
        ("vlcs", 0.05, "resnet18:pretrained", 2),
        ("terra", 0.05, "resnet18:pretrained", 5),
        ("pacs", 0.15, "resnet50:pretrained", 2),
        ("office-home", 0.15, "resnet50:pretrained", 5),
        ("domainnet", 0.15, "resnet50:pretrained", 2),
    ],
)
def test_settings_are_those_of_the_paper(root, name, labelled, model, warmup):
    write_suite(root, name, count=30)
    task = load_task(name, DOMAINS[name][0], **SMALL)
    assert len(task.target) == round(labelled * len(task.target_pool))
    assert task.model == model
    assert task.defaults["optimizer"] == "adam"
    assert (task.defaults["lr"], task.defaults["lr_target"]) == (5e-5, 1e-5)
    assert task.defaults["warmup"] == warmup


@pytest.mark.parametrize("name", DOMAINS)
def test_training_images_can_be_augmented(root, name):
    write_suite(root, name)
    task = load_task(name, DOMAINS[name][0], augment=True, target_fraction=0.5, **SMALL)
    chances = InTurn((PixelsToUnit(), Augment()))
    assert {site.prepare for site in (*task.sources, task.target, task.target_pool)} == {chances}
    assert task.test.prepare == PixelsToUnit()
    with pytest.raises(OptionError, match="leave `augment` or `backbone` out"):
        load_task(name, DOMAINS[name][0], augment=True, backbone="efficientnet-lite0")


class TestSplit:
    @pytest.fixture(autouse=True)
    def _pacs(self, root):
        write_suite(root, "pacs")

    def test_80_percent_of_every_domain_train_and_the_targets_others_test(self):
        task = load_task("pacs", "photo", **SMALL)
        assert [len(source) for source in task.sources] == [56, 56, 56]
        assert (len(task.target_pool), len(task.test)) == (56, 14)
        assert len(task.target) + len(task.unlabelled) == 56
        assert task.test.y.bincount().tolist() == [2] * 7
        assert task.sources[0].y.bincount().tolist() == [8] * 7

    def test_no_row_has_two_roles(self):
        manifest = load_task("pacs", "photo", **SMALL).manifest
        rows = [*manifest["target"], *manifest["unlabelled"], *manifest["test"]]
        assert len({*rows}) == len(rows) == 70
        assert manifest["sources"]["sketch"][0].startswith("sketch/dog/")

    def test_a_domain_is_split_alike_as_source_and_as_target(self):
        target = load_task("pacs", "photo", **SMALL).manifest
        source = load_task("pacs", "sketch", **SMALL).manifest["sources"]["photo"]
        assert sorted(source) == sorted([*target["target"], *target["unlabelled"]])

    def test_the_seed_decides(self):
        first, again, other = (
            load_task("pacs", "photo", seed, **SMALL).manifest for seed in (0, 0, 1)
        )
        assert first["sources"] == again["sources"]
        assert first["test"] == again["test"]
        assert first["sources"] != other["sources"]
        assert first["test"] != other["test"]

    def test_labels_are_an_option(self):
        assert len(load_task("pacs", "photo", n_target=21, **SMALL).target) == 21
        assert len(load_task("pacs", "photo", target_fraction=0.5, **SMALL).target) == 28
        with pytest.raises(OptionError, match="either `n_target` or"):
            load_task("pacs", "photo", n_target=21, target_fraction=0.5, **SMALL)
        with pytest.raises(DataError, match="at most the target's 56 training rows"):
            load_task("pacs", "photo", n_target=57, **SMALL)

    def test_what_cannot_be_is_told_before_anything_is_decoded(self, root):
        (root / "pacs" / "photo" / "dog" / "0.jpg").write_bytes(b"hello")
        with pytest.raises(DataError, match="at most the target's"):
            load_task("pacs", "photo", n_target=57, **SMALL)

    def test_classes_are_in_the_published_order(self):
        task = load_task("pacs", "photo", **SMALL)
        assert task.class_names == suite("pacs").layout.classes
        assert task.manifest["target"][0].split("/")[1] == task.class_names[int(task.target.y[0])]

    def test_images_have_the_size_that_the_networks_take(self):
        task = load_task("pacs", "photo")
        assert task.input_shape == (3, 224, 224)
        build_model("resnet18", task)

    def test_a_head_on_frozen_features_can_be_trained(self, monkeypatch):
        register_tiny_backbone(monkeypatch)
        task = load_task("pacs", "photo", backbone=TINY)
        assert (task.input_shape, task.model, task.defaults["lr"]) == ((3,), "linear", 1e-3)
        result = fb.run(task, "fedda", rounds=1, workers=1)
        assert result.summary["n_test"] == 14

    @pytest.mark.parametrize("spelled", ["art_painting", "art-painting", "Art Painting"])
    def test_targets_are_known_however_they_are_spelled(self, spelled):
        assert load_task("pacs", spelled, **SMALL).target.name == "art_painting"

    def test_counts_other_than_the_published_ones_are_noted(self):
        notes = load_task("pacs", "photo", **SMALL).notes
        assert "'photo' has 70 images, published are 1,670" in notes

    def test_other_folders_are_passed_over(self, root):
        write_images(root / "pacs", ["clay"], ["dog"])
        assert "clay" not in load_task("pacs", "photo", **SMALL).source_names

    def test_a_missing_domain_is_named(self, root):
        (root / "pacs" / "sketch").rename(root / "sketch")
        with pytest.raises(DataError, match=r"a folder 'sketch' in .*data check pacs"):
            load_task("pacs", "photo", **SMALL)

    def test_a_missing_class_is_named(self, root):
        (root / "pacs" / "sketch" / "dog").rename(root / "dog")
        with pytest.raises(DataError, match=r"7 classes .*'sketch' has no images of 'dog'"):
            load_task("pacs", "photo", **SMALL)

    def test_a_class_too_many_is_named(self, root):
        write_images(root / "pacs" / "sketch", ["."], ["cat"])
        with pytest.raises(DataError, match=r"'sketch' has also 'cat'"):
            load_task("pacs", "photo", **SMALL)


def test_a_missing_class_is_named_where_the_catalogue_does_not_list_them(root):
    write_suite(root, "office-home")
    (root / "office-home" / "Art" / "Bed").rename(root / "Bed")
    with pytest.raises(DataError, match=r"'Art' has no images of 'Bed'"):
        load_task("office-home", "real-world", **SMALL)


def test_classes_fewer_than_published_are_noted(root):
    write_suite(root, "office-home")
    task = load_task("office-home", "real-world", **SMALL)
    assert task.target.name == "Real World"
    assert "3 classes, published are 65" in task.notes


def test_a_target_is_needed(root):
    with pytest.raises(TargetNeededError, match="'art_painting', 'cartoon', 'photo', 'sketch'"):
        load_task("pacs")


def test_an_unknown_target_is_answered_with_the_names(root):
    with pytest.raises(UnknownNameError, match=r"Did you mean 'sketch'\? Sites: 'art_painting'"):
        load_task("pacs", "sketches")


def test_a_suite_that_is_not_there_can_be_fetched(root):
    with pytest.raises(DataError, match="fedbridge data fetch pacs"):
        load_task("pacs", "photo")


def test_an_unknown_option_is_refused_and_the_suite_is_none(root):
    with pytest.raises(OptionError, match="no option 'suite'"):
        load_task("pacs", "photo", suite="vlcs")


def test_the_summary_says_which_suite_it_is():
    assert "PACS: 7 classes as art paintings" in summary_of("pacs")
