"""The image suites from a folder in DomainBed's layout to the table of the paper, in small."""

import json
from dataclasses import replace

import pytest
import torch
from pictures import register_tiny_backbone, write_images
from safetensors.torch import load_file, save_file

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.data.builtin import domainbed
from fedbridge.data.images import cache as image_cache
from fedbridge.data.images import preprocessing
from fedbridge.data.store.catalogue import CATALOGUE
from fedbridge.experiments import catalogue
from fedbridge.experiments.tables import result_tables
from fedbridge.models import backbones, resnet
from fedbridge.report.tables import to_markdown
from fedbridge.workflows.reproduce import reproduce

SUITES = ("vlcs", "terra", "pacs", "office-home", "domainnet")
METHOD = "fedgp"
FOLDERS = {"office-home": "office_home", "domainnet": "domain_net", "terra": "terra_incognita"}
WEIGHTS = "tiny.safetensors"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """All suites, named as DomainBed names their folders, with ten small photographs a class."""
    root = tmp_path_factory.mktemp("suites")
    for name in SUITES:
        layout = CATALOGUE[name].layout
        classes = layout.classes or ("Alarm_Clock", "Backpack", "Bed")
        domains = [domain.name for domain in layout.domains]
        count = 5 if name == "terra" else 10
        write_images(root / FOLDERS.get(name, name.upper()), domains, classes, count, "jpg")
    return root


@pytest.fixture(autouse=True)
def _small(tree, tmp_path, monkeypatch):
    """A dat."""
    (tmp_path / "data").mkdir()
    for folder in tree.iterdir():
        (tmp_path / "data" / folder.name).symlink_to(folder)
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(domainbed, "IMAGE_SIZE", 32)
    monkeypatch.setattr(resnet, "STEM", 4)
    monkeypatch.setattr(resnet, "STAGES", (4, 4, 4, 4))
    for name, network in resnet.RESNETS.items():
        thin = replace(network, depths=(1, 1, 1, 1), file=WEIGHTS)
        monkeypatch.setitem(resnet.RESNETS, name, thin)
    really = catalogue.load

    def load(name):
        whole = really(name)
        rows = tuple(row for row in whole.rows if row.method in (METHOD, None))
        return replace(whole, rows=rows, quick=replace(whole.quick, rounds=1))

    monkeypatch.setattr(catalogue, "load", load)


@pytest.fixture
def weights(tmp_path):
    """Parameters of the thin networks, as if they had been trained on ImageNet."""
    for name, network in resnet.RESNETS.items():
        (tmp_path / "data" / name).mkdir()
        save_file(network.normalised(1000).state_dict(), tmp_path / "data" / name / WEIGHTS)
    return tmp_path / "data"


def first_column(name):
    return catalogue.load(name).columns[0].key


def table(found):
    """The one row that was run, as the table shows it."""
    assert [outcome.error for outcome in found.outcomes] == [None]
    (shown,) = result_tables(found)
    return next(line for line in to_markdown(shown).splitlines() if "FedGP" in line)


@pytest.mark.parametrize("name", SUITES)
def test_the_quick_form_trains_a_head_on_frozen_features(name, monkeypatch):
    register_tiny_backbone(monkeypatch, name=backbones.LITE0)
    column = (*catalogue.load(name).quick.columns, first_column(name))[0]
    found = reproduce(name, quick=True, columns=[column], workers=1)
    ours, paper, _ = table(found).split(" | ", 1)[1].split(" / ")
    assert 0 <= float(ours) <= 100
    assert float(paper.split()[0]) > 0
    (outcome,) = found.outcomes
    head = {"linear": 3 + 1, "mlp:128": 128 + 1}[outcome.spec.options.get("model", "linear")]
    hidden = 0 if head == 3 + 1 else (3 + 1) * 128
    assert outcome.summary["parameters"] == hidden + head * n_classes(name)


@pytest.mark.parametrize(
    ("name", "method"), [("ssda-terra", "mme"), ("ssda-vlcs", "mme"), ("domainnet", "fada")]
)
def test_methods_that_work_on_features_have_some_in_the_quick_form(name, method, monkeypatch):
    monkeypatch.setitem(globals(), "METHOD", method)
    register_tiny_backbone(monkeypatch, name=backbones.LITE0)
    column = (*catalogue.load(name).quick.columns, first_column(name))[0]
    found = reproduce(name, quick=True, columns=[column], workers=1)
    assert [outcome.error for outcome in found.outcomes] == [None]
    assert found.outcomes[0].spec.method == method


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("name", SUITES)
def test_the_papers_form_trains_a_residual_network_on_augmented_pixels(name):
    found = reproduce(name, seeds=1, rounds=1, columns=[first_column(name)], workers=1)
    assert table(found)
    (outcome,) = found.outcomes
    network = resnet.RESNETS[domainbed_model(name)].normalised(n_classes(name))
    assert outcome.summary["parameters"] == sum(part.numel() for part in network.parameters())
    assert outcome.spec.task_options["augment"] == "sources"


def test_the_command_shows_the_table(capsys, monkeypatch):
    register_tiny_backbone(monkeypatch, name=backbones.LITE0)
    words = ["reproduce", "vlcs", "--quick", "--columns", "C", "--workers", "1", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["columns"] == ["C"]
    ((cell,),) = (row["cells"] for row in told["rows"])
    assert cell["difference"] == cell["ours"] - 99.43


def domainbed_model(name):
    suite = next(suite for suite in domainbed.SUITES if suite.name == name)
    return suite.model.removesuffix(":pretrained")


def n_classes(name):
    return len(CATALOGUE[name].layout.classes) or 3


def test_batch_norm_keeps_the_statistics_that_the_network_came_with(weights):
    task = fb.load_task("pacs", "photo", augment=True)
    model = fb.run(task, "fedda", 1, workers=1, warmup=1, steps=1).model
    before = load_file(weights / "resnet50" / WEIGHTS)
    assert torch.equal(model.bn1.running_mean, before["bn1.running_mean"])
    assert not torch.equal(model.bn1.weight, before["bn1.weight"])


class TestMissingWeights:
    """They are missed before any image is decoded for them."""

    @pytest.fixture(autouse=True)
    def _blind(self, monkeypatch, tmp_path):
        def decoded(*of):
            raise AssertionError("an image was decoded")

        monkeypatch.setattr(preprocessing, "decode_image", decoded)
        monkeypatch.setattr(image_cache, "cache_folder", lambda: tmp_path / "cache")

    @pytest.mark.parametrize(
        "words",
        [
            "reproduce pacs",
            "run pacs --target photo",
            "run tiny.toml",
            "run other.toml --model resnet50:pretrained",
            "advise pacs --target photo",
            "compare pacs --targets photo,sketch --methods fedda",
        ],
    )
    def test_by_every_command(self, words, capsys, tmp_path):
        (tmp_path / "tiny.toml").write_text('[task]\nname = "pacs"\ntarget = "photo"\n')
        (tmp_path / "other.toml").write_text('[task]\npath = "data/PACS"\ntarget = "photo"\n')
        assert main(words.split()) == 2
        assert "fedbridge data fetch resnet50" in capsys.readouterr().err

    def test_from_python(self):
        with pytest.raises(fb.FedbridgeError, match="data fetch resnet50"):
            fb.run("pacs", "fedda", 1, target="photo")
        with pytest.raises(fb.FedbridgeError, match="data fetch resnet50"):
            fb.advise("pacs", "photo")

    def test_a_model_that_needs_none_is_not_held_up(self):
        with pytest.raises(AssertionError, match="an image was decoded"):
            fb.run("pacs", "fedda", 1, target="photo", model="cnn")
