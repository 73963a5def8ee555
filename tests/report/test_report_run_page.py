"""The page of a run: what it says, finished or not, and that data cannot break it."""

import base64
import gzip
import hashlib
import json
import re
import shlex

import numpy as np
import pytest
import torch
from report_reading import (
    cells,
    chart_rows,
    chart_titles,
    charts,
    line,
    points_of,
    read,
    table_called,
    two_classes,
    write_run,
)

import fedbridge as fb
from fedbridge.base.errors import FedbridgeError
from fedbridge.base.values import OBJECT_MODEL
from fedbridge.report import ReportError, write_report, write_tables

EVIL = "<script>alert(1)</script>"


def page_of(folder):
    return read(write_report(folder).read_text(encoding="utf-8"))


def lines(*rounds, **changes):
    return [line(number, 2, **changes) for number in rounds]


def test_the_page_of_a_real_run(tmp_path):
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
    y = np.arange(20) % 2
    task = fb.FederatedTask.from_arrays({"A": (x, y), "B": (x + 1, y)}, (x, y), (x, y))
    folder = tmp_path / "run"
    fb.run(task, method="fedda-joint", rounds=2, workers=1, batch_size=5, out=folder)
    page = page_of(folder)
    assert "fedda-joint for target: accuracy" in page.one("p", class_="verdict").text
    for key, lines_drawn in {
        "accuracy-over-rounds": 3,
        "loss-over-rounds": 1,
        "source-weights": 2,
        "noise-and-distances": 3,
    }.items():
        drawn = points_of(page, key)
        assert len(drawn) == lines_drawn
        assert all([x for x, _ in points] == [1, 2] for points in drawn.values())
    sites = cells(table_called(page, "What every site brought"))
    assert [row[:3] for row in sites] == [
        ["target", "target", "20"],
        ["A", "source", "20"],
        ["B", "source", "20"],
    ]


def test_the_verdict_has_an_interval_and_warns_of_a_small_test_set(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, 3), n_test=16))
    assert "accuracy 53.0\N{NO-BREAK SPACE}% (30.5 to 74.4" in page.one("p", class_="verdict").text
    assert "A test set of 16 rows says little" in page.one("p", class_="caution").text


def test_the_evidence_is_of_the_accuracy_in_the_verdict(tmp_path):
    outputs, labels = two_classes(60)
    folder = write_run(tmp_path, lines(1), n_classes=2, n_test=60, outputs=outputs, labels=labels)
    header = page_of(folder).one("header")
    assert "accuracy 51.0\N{NO-BREAK SPACE}% (38.7 to 63.2" in header.one(class_="verdict").text
    assert "38.7% to 63.2%" in header.one("p", class_="caution").text


def test_a_large_test_set_gives_no_warning(tmp_path):
    assert not page_of(write_run(tmp_path, lines(1), n_test=400)).all("p", class_="caution")


def test_a_class_that_is_missing_in_the_test_set_is_named(tmp_path):
    outputs, labels = two_classes(400)
    only = {"outputs": outputs[labels == 1], "labels": labels[labels == 1]}
    folder = write_run(tmp_path, lines(1), n_classes=2, n_test=200, **only)
    assert "No test row is of <b>: how well" in page_of(folder).one("p", class_="caution").text


def test_a_site_with_html_in_its_name_is_shown_as_text(tmp_path):
    history = lines(1, 2, failures={EVIL: f"loss {EVIL}"}, notes=[EVIL], choice=EVIL)
    folder = write_run(
        tmp_path,
        history,
        sources=(EVIL, '" onload="alert(1)'),
        target=f"{EVIL}!",
        origin=EVIL,
        settings={"device": EVIL}.items(),
        summary={"notes": [EVIL]}.items(),
    )
    text = write_report(folder).read_text(encoding="utf-8")
    page = read(text)
    assert EVIL not in text
    assert not any("onload" in element.attributes for element in page.all())
    assert EVIL in page.one("h1").text
    assert EVIL in table_called(page, "What every site brought").text
    assert EVIL in points_of(page, "source-weights")
    assert EVIL in table_called(page, "Sites left out").text
    assert EVIL in page.one("pre").text


def test_a_page_is_one_file_that_loads_nothing_and_runs_two_scripts(tmp_path):
    text = write_report(write_run(tmp_path, lines(1, 2))).read_text(encoding="utf-8")
    page = read(text)
    assert not re.findall(
        r"(?:https?:)?//\w",
        re.sub(r"<script>.*?</script>|<script[^>]*id=\"library.*?</script>", "", text, flags=re.S),
    )
    assert [link.attributes["href"] for link in page.all("link")] == ["data:,"]
    policy = next(
        meta.attributes["content"] for meta in page.all("meta") if "http-equiv" in meta.attributes
    )
    (own,) = (script for script in page.all("script") if not script.attributes)
    library = gzip.decompress(base64.b64decode(page.one("script", id="library").text))
    sums = [
        base64.b64encode(hashlib.sha256(script).digest()).decode()
        for script in (own.text.encode(), library)
    ]
    assert policy.startswith("default-src 'none'")
    assert policy.endswith(f"script-src 'sha256-{sums[0]}' 'sha256-{sums[1]}'")
    assert "unsafe-eval" not in policy


def test_ids_are_unique_and_tables_can_be_sorted_with_the_keyboard(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2)))
    ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for table in page.all("table"):
        heads = table.one("thead").all("th")
        assert all(head.one("button").text for head in heads)
        assert all("data-key" in cell.attributes for cell in table.one("tbody").all("td"))


def test_missing_values_are_gaps(tmp_path):
    history = [
        line(1, 2),
        line(2, 2, beta=None, d2=None, cosine=None, sigma2=None, accuracy=None),
        line(3, 2, beta=[None, 0.5]),
    ]
    page = page_of(write_run(tmp_path, history))
    assert points_of(page, "source-weights") == {
        "A": [(1, 0), (2, None), (3, None)],
        "B": [(1, 0.1), (2, None), (3, 0.5)],
    }
    assert points_of(page, "noise-and-distances")["target's noise σ²"] == [
        (1, 1.5),
        (2, None),
        (3, 1.5),
    ]
    row_of_a = cells(table_called(page, "What every site brought"))[1]
    assert row_of_a[3:5] == ["0", "–"]


def test_a_method_without_weights_has_no_lines_of_them(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, beta=None)))
    assert chart_titles(page) == [
        "Accuracy",
        "Loss",
        "Noise and distances",
        "Where the sources lie",
    ]


def test_an_unfinished_run_shows_what_is_there(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2), rounds=50, finished=False))
    assert "accuracy 52.0" in page.one("p", class_="verdict").text
    assert "Unfinished, 2 of 50 rounds" in page.one("header").text


def test_a_summary_of_fewer_rounds_is_of_a_run_that_goes_on(tmp_path):
    history = lines(1, 2, 3)
    folder = write_run(tmp_path, history, rounds=5, summary={"rounds": 2, "accuracy": 9.0}.items())
    page = page_of(folder)
    assert "accuracy 53.0" in page.one("p", class_="verdict").text
    assert "Unfinished, 3 of 5 rounds" in page.one("header").text


def test_a_half_written_last_round_is_left_out(tmp_path):
    folder = write_run(tmp_path, lines(1, 2), rounds=9, finished=False)
    with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 3, "accu')
    assert "2 of 9 rounds" in page_of(folder).one("header").text


def test_a_run_that_has_only_begun(tmp_path):
    folder = write_run(tmp_path, [], rounds=9, finished=False)
    (folder / "history.jsonl").unlink()
    (folder / "manifest.json").unlink()
    page = page_of(folder)
    assert "no round is finished yet" in page.one("p", class_="verdict").text
    assert charts(page) == {}
    assert not page.all("figure")
    assert not page.all("script", id="library"), "no chart, no library"


def test_a_run_that_stopped_early_says_so(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, validation_loss=0.5), rounds=9))
    assert "Stopped early after 2 of 9 rounds." in page.one("header").text
    assert list(points_of(page, "loss-over-rounds")) == ["test", "validation"]


def test_a_regression_has_a_loss_and_no_accuracy(tmp_path):
    history = lines(1, 2, accuracy=None, balanced_accuracy=None, loss=0.25)
    page = page_of(write_run(tmp_path, history, n_classes=None, n_test=20))
    assert page.one("p", class_="verdict").text == "fedgp for home: squared error 0.250"
    assert "accuracy" not in page.one("header").text
    assert "Only 20 test samples" in page.one("p", class_="caution").text
    assert "Accuracy" not in chart_titles(page)
    assert points_of(page, "loss-over-rounds") == {"test": [(1, 0.25), (2, 0.25)]}


def test_the_error_of_the_delivered_model_is_told_from_the_mean_of_the_rounds(tmp_path):
    history = lines(1, accuracy=None, balanced_accuracy=None, loss=0.25)
    outputs = torch.arange(20.0).reshape(20, 1) / 10
    tested = {"outputs": outputs, "labels": outputs[:, 0] - 1}
    page = page_of(write_run(tmp_path, history, n_classes=None, n_test=20, **tested))
    assert "squared error 0.250" in page.one("p", class_="verdict").text
    assert "the delivered model's error on it is 1," in page.one("p", class_="caution").text


def test_weights_are_drawn_from_zero_and_explained(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, beta=[1.0, 1.0])))
    for key, axis in (("source-weights", "y"), ("source-contributions", "x")):
        for layer in charts(page)[key]["spec"]["layer"]:
            place = layer["encoding"][axis]
            assert "field" not in place or place["scale"]["domain"] == [0, 1]
    assert "0 is not at all" in page.one(id="chart-source-weights").text


def test_the_warm_up_is_drawn_but_has_no_weights(tmp_path):
    warm = lines(-1, 0, beta=None, d2=None, sigma2=None, cosine=None, phase="warm-up")
    page = page_of(write_run(tmp_path, warm + lines(1, 2), rounds=2))
    assert [x for x, _ in points_of(page, "loss-over-rounds")["test"]] == [-1, 0, 1, 2]
    assert [x for x, _ in points_of(page, "source-weights")["A"]] == [1, 2]
    assert "Rounds up to 0 are the warm-up." in page.text
    assert "2 of 2" in page.one("dl", class_="tiles").text


def test_who_was_left_out_and_why(tmp_path):
    history = [
        line(1, 2),
        line(2, 2, failures={"B": "dropped out"}),
        line(3, 2, failures={"B": "loss is NaN"}, notes=["no source is there"]),
    ]
    page = page_of(write_run(tmp_path, history))
    assert cells(table_called(page, "Sites left out")) == [
        ["2", "B", "dropped out"],
        ["3", "B", "loss is NaN"],
        ["3", "", "no source is there"],
    ]
    sites = cells(table_called(page, "What every site brought"))
    assert [row[-1] for row in sites] == ["0", "0", "2"]


def test_what_rounds_say_again_and_again_is_said_once(tmp_path):
    history = [line(r, 2, notes=["B is late"] if r not in (3, 9) else []) for r in range(1, 12)]
    history[0]["failures"] = {"A": "dropped out"}
    page = page_of(write_run(tmp_path, history, summary={"notes": ["a", "b", "a"]}.items()))
    assert cells(table_called(page, "Sites left out")) == [
        ["1", "A", "dropped out"],
        ["1 to 2, 4 to 8, 10 to 11", "", "B is late"],
    ]
    listed = page.one("section", id="left-out-and-notes").all("li")
    assert [item.text for item in listed] == ["a", "b"]


def colours_of(page, key):
    """Every name on a chart, or the style of its rows, with its colours."""
    found = {}
    for layer in charts(page)[key]["spec"]["layer"]:
        scale = layer["encoding"].get("color", {}).get("scale", {})
        for name, colour in zip(scale.get("domain", ()), scale.get("range", ()), strict=True):
            found.setdefault(name, set()).add(colour)
    return found


def test_a_colour_is_of_one_source_or_of_the_model(tmp_path):
    outputs, labels = two_classes(60)
    history = lines(1, 2, d2=[0.5, 1.0], validation_loss=0.5)
    folder = write_run(tmp_path, history, n_classes=2, outputs=outputs, labels=labels)
    page = page_of(folder)
    model = colours_of(page, "accuracy-over-rounds") | colours_of(page, "loss-over-rounds")
    assert model.pop("chance") == {"var(--soft)"}
    assert {colour for found in model.values() for colour in found} == {"var(--c0)"}
    weights = colours_of(page, "source-weights")
    assert weights == {"A": {"var(--c1)"}, "B": {"var(--c2)"}}
    distances = colours_of(page, "noise-and-distances")
    assert distances == {**weights, "target's noise σ²": {"var(--ink)"}}
    for key, data in (("source-contributions", "values"), ("map-of-winners", "places")):
        styled = {row["name"]: row["style"] for row in chart_rows(page, key, data)}
        assert styled == {"A": "c1", "B": "c2"}
    for key in ("confusion-matrix", "roc-curve", "calibration"):
        used = set(re.findall(r"var\(--(c\d)\)", json.dumps(charts(page)[key]["spec"])))
        assert used == {"c0"}


def judged(round, *, joined, alone, **more):
    return line(
        round,
        2,
        cv_loss={"led, last": 2.0, "head, last": joined, "alone": alone, "alone, network": 3.0},
        cv_error={"led, last": 0.5, "head, last": 0.1, "alone": 0.2, "alone, network": 0.5},
        weights={"led, last": 1e-5, "head, last": 0.7, "alone": 0.3, "alone, network": 0.0},
        worth={
            "rows": 30,
            "alone": alone,
            "gain": alone - (joined or 0.0),
            "error": 0.1,
            "points": 3.0,
            "points_error": 2.0,
            "of_classes": True,
        },
        **more,
    )


def test_alone_against_joined_and_chance_by_the_targets_own_labels(tmp_path):
    history = [judged(1, joined=0.9, alone=1.0), judged(2, joined=0.6, alone=1.0)]
    page = page_of(write_run(tmp_path, history))
    drawn = points_of(page, "alone-against-joined")
    assert drawn["alone"] == [(1, 1), (2, 1)]
    assert drawn["with the sources"] == [(1, 0.9), (2, 0.6)]
    assert drawn["chance"] == [(1, 1.0986), (2, 1.0986)], "three classes"
    band = [
        (row["low"], row["high"])
        for row in chart_rows(page, "alone-against-joined")
        if row["s"] == "with the sources"
    ]
    assert band == [(0.8, 1), (0.5, 0.7)]
    assert set(points_of(page, "candidate-weights")) == {"head, last", "alone"}
    colours = colours_of(page, "candidate-weights")
    assert colours == {"head, last": {"var(--c0)"}, "alone": {"var(--ink)"}}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.06, 0.04], "the 6 heaviest at the end, of 9;"),
        ([0.5, 0.5, 0.0], "the 2 that ever weighed 0.01 or more, of 3;"),
        ([0.5, 0.5], None),
    ],
)
def test_a_chart_of_some_candidates_says_so(tmp_path, weights, said):
    names = [f"head, {k}" for k in range(len(weights))]
    told = {"cv_loss": dict.fromkeys(names, 1.0), "weights": dict(zip(names, weights, strict=True))}
    page = page_of(write_run(tmp_path, [line(1, 2, **told)]))
    note = page.one("figure", id="chart-candidate-weights").one("p", class_="note").text
    drawn = set(points_of(page, "candidate-weights"))
    assert drawn == set(names[: min(6, sum(w > 0 for w in weights))])
    assert said in note if said else "Drawn" not in note


def test_a_candidate_without_a_loss_is_left_out_and_text_for_one_is_refused(tmp_path):
    page = page_of(write_run(tmp_path / "none", [judged(1, joined=None, alone=1.0)]))
    assert "head, last" not in table_called(page, "What the target chose from").text
    for name, wrong in (("cv_loss", {"alone": "much"}), ("worth", {"alone": 1.0})):
        with pytest.raises(ReportError, match=name):
            write_report(
                write_run(tmp_path / name, [judged(1, joined=1.0, alone=1.0) | {name: wrong}])
            )


def test_a_method_that_tries_nothing_alone_says_so(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2)))
    assert "alone-against-joined" not in charts(page)
    said = page.one("section", id="alone-against-joined").text
    assert "does not tell what training alone would have given: fedgp" in said


def test_accuracy_is_drawn_up_to_all_of_it_with_chance_below(tmp_path):
    history = lines(1, 2, accuracy=99.0, balanced_accuracy=98.0)
    page = page_of(write_run(tmp_path / "unknown", history))
    assert points_of(page, "accuracy-over-rounds")["chance"] == [(1, 33.333), (2, 33.333)]
    assert "Chance: one of 3 classes by lot, 33.3" in page.text
    ends = charts(page)["accuracy-over-rounds"]["spec"]["layer"][0]["encoding"]["y"]["scale"]
    assert ends["domain"] == [20, 100]
    outputs, _ = two_classes(60)
    labels = torch.tensor([0] * 45 + [1] * 15)
    tested = {"n_classes": 2, "outputs": outputs, "labels": labels}
    page = page_of(write_run(tmp_path / "known", history, **tested))
    assert points_of(page, "accuracy-over-rounds")["chance"] == [(1, 75), (2, 75)]


def test_the_header_says_when_the_accuracy_is_below_chance(tmp_path):
    below = page_of(write_run(tmp_path / "below", [line(1, 2, accuracy=33.0)]))
    said = (
        "The accuracy is below chance, which is 33.3\N{NO-BREAK SPACE}% (one of 3 classes by lot)."
    )
    assert said in [p.text for p in below.one("header").all("p", class_="caution")]
    for accuracy in (33.3, 34.0):
        folder = write_run(tmp_path / f"{accuracy}", [line(1, 2, accuracy=accuracy)])
        assert "below chance" not in page_of(folder).text


def test_a_quiet_run_has_no_section_about_failures(tmp_path):
    headings = [h.text for h in page_of(write_run(tmp_path, lines(1))).all("h2")]
    assert "Left out, and notes" not in headings


def test_the_command_says_everything_and_survives_a_shell(tmp_path):
    settings = {"lr": 0.05, "align": True, "class_weights": [1, 2.5], "device": "a b"}
    folder = write_run(tmp_path, lines(1), target="St. John's", settings=settings.items())
    words = shlex.split(page_of(folder).one("pre").text.replace("\\\n", " "))
    assert words[:5] == ["fedbridge", "run", "digits-noise", "--target", "St. John's"]
    assert words[5:11] == ["--method", "fedgp", "--rounds", "1", "--seed", "7"]
    assert words[11:17] == ["--out", "again", "--model", "mlp", "--lr", "0.05"]
    assert words[17:] == ["--align", "true", "--class-weights", "[1, 2.5]", "--device", "a b"]


def test_the_command_names_the_file_that_the_rows_came_from(tmp_path):
    folder = write_run(tmp_path, lines(1), loaded_as="my digits.csv")
    assert "run 'my digits.csv'" in page_of(folder).one("pre").text


@pytest.mark.parametrize("given", [{"loaded_as": None}, {"network": f"{OBJECT_MODEL}Net"}])
def test_what_no_command_can_load_has_a_call(tmp_path, given):
    page = page_of(write_run(tmp_path, lines(1), **given))
    assert page.one("pre").text.startswith("fedbridge.run(\n    task,\n    'fedgp',\n    rounds=1,")
    assert "came from a Python program" in page.one("section", id="run-it-again").text


def test_fifty_sources_and_five_hundred_rounds_stay_small(tmp_path):
    names = [f"Hospital of a rather long name {k}" for k in range(50)]
    beta = [0.123456 + k / 1000 for k in range(50)]
    history = [
        line(r, 50, accuracy=r / 7, beta=beta[r % 50 :] + beta[: r % 50]) for r in range(1, 601)
    ]
    folder = write_run(tmp_path, history, sources=names)
    report = write_report(folder)
    assert report.stat().st_size < 1_000_000
    page = read(report.read_text(encoding="utf-8"))
    drawn = chart_rows(page, "source-weights")
    assert len({row["s"] for row in drawn if not row["pale"]}) == 7
    assert len({row["s"] for row in drawn if row["pale"]}) == 43
    assert len(drawn) == 50 * 75
    assert "One in 8 rounds is drawn. In grey: 43 more." in page.text
    assert len(cells(table_called(page, "Measures by round"))) == 500
    assert "The last 500 of 600" in page.text


def test_the_same_files_give_the_same_page_and_nothing_is_left_beside_it(tmp_path):
    folder = write_run(tmp_path, lines(1, 2))
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert write_report(folder) == folder / "report.html"
    assert not list(folder.glob(".*"))


def test_the_page_can_be_written_elsewhere(tmp_path):
    folder = write_run(tmp_path / "run", lines(1))
    there = tmp_path / "new" / "mine.html"
    assert write_report(folder, there) == there
    assert "<!doctype html>" in there.read_text(encoding="utf-8")
    assert not (folder / "report.html").exists()


def test_another_folder_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ReportError, match="has neither"):
        write_report(tmp_path)
    assert issubclass(ReportError, FedbridgeError)


def test_a_broken_manifest_is_named(tmp_path):
    folder = write_run(tmp_path, lines(1))
    for text in ("{", "[]"):
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        with pytest.raises(ReportError, match=r"manifest\.json"):
            write_report(folder)


def test_what_the_test_rows_show_of_two_classes(tmp_path):
    outputs, labels = two_classes(60)
    folder = write_run(
        tmp_path, lines(1, 2), n_classes=2, n_test=60, outputs=outputs, labels=labels
    )
    page = page_of(folder)
    right = int((outputs.argmax(1) == labels).sum())
    counts = {
        (row["true"], row["named"]): row["count"] for row in chart_rows(page, "confusion-matrix")
    }
    assert counts["<b>", "<b>"] + counts["&amp;", "&amp;"] == right
    assert sum(counts.values()) == 60
    measures = {row[0]: row[1:] for row in cells(table_called(page, "Measures on the test set"))}
    assert measures["Accuracy, %"][0] == f"{100 * right / 60:.1f}"
    assert measures["Accuracy, %"][3] == "60"
    assert 0 < float(measures["Area under ROC"][1]) < float(measures["Area under ROC"][0]) <= 1
    assert chart_titles(page)[-3:] == ["Confusion matrix", "ROC curve", "Calibration"]
    curve = chart_rows(page, "roc-curve")
    assert (curve[0]["alarms"], curve[0]["hits"]) == (0, 0)
    assert (curve[-1]["alarms"], curve[-1]["hits"]) == (1, 1)
    assert sum(row["count"] for row in chart_rows(page, "calibration")) == 60


def test_every_threshold_has_its_sensitivity_and_specificity(tmp_path):
    outputs, labels = two_classes(60)
    folder = write_run(tmp_path, lines(1), n_classes=2, outputs=outputs, labels=labels)
    panel = page_of(folder).one("div", class_="panel")
    said = json.loads(panel.attributes["data-points"])
    positive = outputs.softmax(1)[:, 1] >= 0.3
    found = 100 * float((positive & (labels == 1)).sum()) / 30
    spared = 100 * float((~positive & (labels == 0)).sum()) / 30
    assert said[30]["threshold"] == "0.30"
    assert said[30]["sensitivity"].startswith(f"{found:.1f}\N{NO-BREAK SPACE}% (")
    assert said[30]["specificity"].startswith(f"{spared:.1f}\N{NO-BREAK SPACE}% (")
    assert len(said) == 101
    assert "&amp; found" in panel.text, "the second class, by its own name"
    slider = panel.one("input")
    assert panel.one("label").attributes["for"] == slider.attributes["id"]


def test_a_small_test_set_is_called_one_in_words(tmp_path):
    outputs, labels = two_classes(16)
    folder = write_run(tmp_path, lines(1), n_classes=2, n_test=16, outputs=outputs, labels=labels)
    told = page_of(folder).one("p", class_="caution").text
    assert told.startswith("A test set of 16 rows says little")


def test_without_outputs_the_page_leaves_the_test_set_out(tmp_path):
    page = page_of(write_run(tmp_path, lines(1)))
    assert "On the test set" not in [h.text for h in page.all("h2")]


def test_the_map_shows_where_every_source_lies(tmp_path):
    history = lines(1, 2, sigma2=2.0, d2=[1.0, -3.0], tau2_d2=[0.5, 0.1])
    page = page_of(write_run(tmp_path, history, summary={"parameters": 1000}.items()))
    (here,) = chart_rows(page, "map-of-winners", "places")
    assert (here["name"], here["d2"], here["sigma2"]) == ("A", 1, 2)
    assert here["predicted"] == "fedgp"
    drawn = page.one(id="chart-map-of-winners").text
    assert "Not on the map, with an estimate of zero or below: B." in drawn


def test_where_no_source_can_lie_on_the_map_the_page_says_so(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, d2=[-1.0, -3.0])))
    assert "map-of-winners" not in charts(page)
    assert "No map of who wins" in page.one("section", id="whom-it-trusted").text


def test_of_a_thousand_sources_the_weightiest_ten_are_named_and_the_others_share_a_line(tmp_path):
    names = [f"site {k:04}" for k in range(1000)]
    beta = [k / 1000 for k in range(1000)]
    history = [line(r, 1000, beta=beta) for r in (1, 2)]
    folder = write_run(tmp_path, history, sources=names)
    sites = cells(table_called(page_of(folder), "What every site brought"))
    assert [row[0] for row in sites] == ["home", *names[:-11:-1], "990 more"]
    assert sites[-1][3] == "0.494"
    (table,) = (file for file in write_tables(folder, tmp_path / "t") if file.name == "sites.csv")
    assert len(table.read_text().splitlines()) == 1002
