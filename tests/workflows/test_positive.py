"""Which of two classes is positive decides what is reported, and nothing else."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from flower.pretend import run_over_pretended_flower
from small import same_but_for_seconds, same_model

import fedbridge as fb
from fedbridge.advice import advise
from fedbridge.cli.main import main
from fedbridge.data.site_package import load_site, save_site, sites_of
from fedbridge.report import write_report, write_tables
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.record import read_run

QUICK = {"rounds": 3, "workers": 1, "model": "mlp:4", "lr": 0.1, "batch_size": 8}
OF_ONE_CLASS = ("sensitivity", "specificity", "precision")


def wards(positive=None):
    """Two classes with labels that are no numbers; the first in their order is `ill`."""
    generator = torch.Generator().manual_seed(0)

    def site(count):
        x = torch.randn(count, 3, generator=generator)
        ill = x[:, 0] + 0.8 * torch.randn(count, generator=generator) > 0.4
        return x.numpy(), ["ill" if yes else "well" for yes in ill.tolist()]

    sites = {"A": site(60), "B": site(60)}
    return fb.FederatedTask.from_arrays(sites, site(30), site(50), positive=positive)


def summary_in(folder):
    return json.loads((folder / "summary.json").read_text())


def row_of(folder, name):
    """The line of a table of measures that begins with a name."""
    write_tables(folder, folder / "tables")
    table = pd.read_csv(folder / "tables/measures.csv").set_index("measure")
    return table.loc[[line for line in table.index if line.startswith(name)]]["value"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run three times: nothing said, either class; each with its folder."""
    root = tmp_path_factory.mktemp("positive")
    each = (None, "ill", "well")
    return {
        name: fb.run(wards(name), "auto", **QUICK, out=root / (name or "unsaid")) for name in each
    }


@pytest.mark.parametrize("name", ["ill", "well"])
def test_model_history_and_trust_are_the_same_to_the_bit(runs, name):
    plain, chosen = runs[None], runs[name]
    assert same_model(plain.model, chosen.model)
    assert same_but_for_seconds(plain.history, chosen.history)
    for file in ("model.safetensors", "test.safetensors"):
        assert (plain.out / file).read_bytes() == (chosen.out / file).read_bytes()
    told = {"seconds", "notes", "positive", *OF_ONE_CLASS}
    kept = [{k: v for k, v in r.summary.items() if k not in told} for r in (plain, chosen)]
    assert kept[0] == kept[1]
    ours, theirs = (read_run(r.out).diagnosis for r in (plain, chosen))
    assert ours.measures == theirs.measures, "accuracies and the area under the curve, as intervals"


def test_sensitivity_and_specificity_are_mirrored(runs):
    plain, ill, well = (summary_in(runs[name].out) for name in (None, "ill", "well"))
    assert [s["positive"] for s in (plain, ill, well)] == ["well", "ill", "well"]
    assert (ill["sensitivity"], ill["specificity"]) == (well["specificity"], well["sensitivity"])
    assert ill["sensitivity"] != ill["specificity"]
    assert {k: plain[k] for k in OF_ONE_CLASS} == {k: well[k] for k in OF_ONE_CLASS}
    classes = read_run(runs["ill"].out).diagnosis.classes
    for told, label in ((ill, 0), (well, 1)):
        assert told["sensitivity"] == classes[label].recall.value
        assert told["precision"] == classes[label].precision.value


@pytest.mark.parametrize("name", ["ill", "well"])
def test_page_card_and_tables_of_the_second_day_are_of_it(runs, name):
    folder = runs[name].out
    write_report(folder)
    page, card = (folder / "report.html").read_text(), (folder / "model-card.md").read_text()
    assert f"Sensitivity: {name} found" in page
    assert f"predicted probability of {name} in %" in page
    for measure in OF_ONE_CLASS:
        (value,) = row_of(folder, f"{measure} for {name} at")
        assert value == pytest.approx(summary_in(folder)[measure], abs=0.06)
        assert f"{measure} for {name} at" in card
    assert advise(folder).worth == advise(runs[None].out).worth


def test_new_rows_are_predicted_alike(runs):
    rows = wards().test.x.numpy()
    found = [fb.predict(runs[name].out, rows) for name in (None, "ill", "well")]
    for other in found[1:]:
        pd.testing.assert_frame_equal(found[0], other)


def test_curve_and_calibration_are_of_the_class(runs):
    ill, well = (read_run(runs[name].out).diagnosis for name in ("ill", "well"))
    ours, theirs = (
        [*zip(roc.false_positive_rate, roc.sensitivity, strict=True)] for roc in (ill.roc, well.roc)
    )
    assert ours == [pytest.approx((1 - y, 1 - x)) for x, y in reversed(theirs)]
    predicted = [100 - part.predicted for part in reversed(well.calibration.bins)]
    assert [part.predicted for part in ill.calibration.bins] == pytest.approx(predicted)


def test_a_finished_run_is_told_again_without_training(runs, tmp_path, monkeypatch):
    first = fb.run(wards(), "auto", **QUICK, out=tmp_path)
    monkeypatch.setattr("fedbridge.federation.federation.Federation.open", None)
    again = fb.run(wards("ill"), "auto", **QUICK, out=tmp_path, resume=True)
    RunFolder(tmp_path).verify()
    assert same_model(first.model, fb.load_run(tmp_path).model)
    expected = {**summary_in(runs["ill"].out), "seconds": first.summary["seconds"]}
    assert summary_in(tmp_path) == again.summary == expected
    assert "sensitivity for ill at" in (tmp_path / "model-card.md").read_text()
    assert "Sensitivity: ill found" in (tmp_path / "report.html").read_text()


def test_a_run_goes_on_with_the_other_class(runs, tmp_path):
    fb.run(wards("well"), "auto", **{**QUICK, "rounds": 1}, out=tmp_path)
    grown = fb.run(wards("ill"), "auto", **QUICK, out=tmp_path, resume=True)
    assert same_model(grown.model, runs["ill"].model)
    assert read_run(tmp_path).positive == 0


def test_a_run_that_does_not_say_is_of_the_second_class_and_goes_on(tmp_path, monkeypatch):
    fb.run(wards(), "auto", **QUICK, out=tmp_path)
    folder = RunFolder(tmp_path)
    said = ("positive", *OF_ONE_CLASS)
    folder.write_config({k: v for k, v in folder.config().items() if k not in said})
    folder.write_summary({k: v for k, v in folder.summary().items() if k not in said})
    folder.seal()
    before = (tmp_path / "summary.json").read_bytes()
    assert len(row_of(tmp_path, "sensitivity for well at")) == 1
    with monkeypatch.context() as patch:
        patch.setattr("fedbridge.federation.federation.Federation.open", None)
        fb.run(wards(), "auto", **QUICK, out=tmp_path, resume=True)
    assert (tmp_path / "summary.json").read_bytes() == before, "it is as it was asked for"
    longer = fb.run(wards("ill"), "auto", **{**QUICK, "rounds": 4}, out=tmp_path, resume=True)
    assert longer.summary["positive"] == "ill"


@pytest.mark.parametrize("wrong", ["I'll", "ILL"])
def test_a_damaged_configuration_is_named(runs, tmp_path, wrong):
    fb.run(wards("ill"), "fedda", **QUICK, out=tmp_path)
    folder = RunFolder(tmp_path)
    folder.write_config({**folder.config(), "positive": wrong})
    with pytest.raises(RunFolderError, match=r"`positive` in .*restore the file"):
        read_run(tmp_path)


def test_a_comparison_keeps_its_scores_and_tells_its_runs_again(tmp_path):
    plan = {"methods": ["fedda"], "seeds": 1, "alone": False, "out": tmp_path, **QUICK}
    first = fb.compare([wards()], **plan)
    again = fb.compare([wards("ill")], **plan)
    pd.testing.assert_frame_equal(first.frame(), again.frame())
    assert {read_run(cell).positive for cell in tmp_path.glob("cells/*")} == {0}


def test_a_site_takes_it_along(tmp_path):
    target = sites_of(wards("ill"))[0]
    save_site(tmp_path / "target.safetensors", target)
    assert load_site(tmp_path / "target.safetensors").positive == 0


def test_the_target_of_a_network_tells_of_it(runs, tmp_path):
    strategy, _ = run_over_pretended_flower(
        wards("ill"), "auto", 3, tmp_path, model="mlp:4", lr=0.1, batch_size=8
    )
    assert strategy.result.accuracy == runs[None].accuracy
    (config,) = tmp_path.rglob("config.toml")
    assert RunFolder(config.parent).config()["positive"] == "ill"


def test_on_a_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    task = wards()
    parts = []
    for site in (*task.sources, task.target):
        frame = pd.DataFrame(site.x.numpy(), columns=["a", "b", "c"])
        labels = [task.class_names[k] for k in site.y.tolist()]
        parts.append(frame.assign(site=site.name, label=labels))
    pd.concat(parts).to_csv("wards.csv", index=False)
    words = ["run", "wards.csv", "--target", "target", "--rounds", "2", "--workers", "1", "--json"]
    told = {}
    for name in ("ill", "well"):
        assert main([*words, "--positive", name, "--out", name]) == 0
        told[name] = json.loads(capsys.readouterr().out)
    assert told["ill"]["sensitivity"] == told["well"]["specificity"]
    model = [Path(name, "model.safetensors").read_bytes() for name in ("ill", "well")]
    assert model[0] == model[1]
    assert main([*words, "--positive", "dead", "--out", "dead"]) == 2
    assert "one of the labels 'ill', 'well', but got 'dead'" in capsys.readouterr().err
