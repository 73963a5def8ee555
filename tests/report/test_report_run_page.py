"""The page of a run: what it says, finished or not, and that data cannot break it."""

import base64
import hashlib
import re
import shlex

import numpy as np
import pytest
from report_reading import cells, chart, line, read, table_called, write_run

import fedbridge as fb
from fedbridge.errors import FedbridgeError
from fedbridge.report import ReportError, write_report

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
    for key, lines_drawn in {"accuracy": 2, "loss": 1, "beta": 2, "d2": 3}.items():
        assert len(chart(page, key).all("path", class_="line")) == lines_drawn
        assert len(chart(page, key).all("circle")) == 2 * lines_drawn
    sites = cells(table_called(page, "What every site brought"))
    assert [row[:3] for row in sites] == [
        ["target", "target", "20"],
        ["A", "source", "20"],
        ["B", "source", "20"],
    ]


def test_the_verdict_has_an_interval_and_warns_of_a_small_test_set(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, 3), n_test=16))
    assert "accuracy 53.0\N{NO-BREAK SPACE}% (30.5 to 74.4" in page.one("p", class_="verdict").text
    assert "Only 16 test samples: the result says little" in page.one("p", class_="caution").text


def test_a_large_test_set_gives_no_warning(tmp_path):
    assert not page_of(write_run(tmp_path, lines(1), n_test=100)).all("p", class_="caution")


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
    assert len(page.all("script")) == 1
    assert EVIL not in text
    assert not any("onload" in element.attributes for element in page.all())
    assert EVIL in page.one("h1").text
    assert EVIL in table_called(page, "What every site brought").text
    assert any(EVIL in circle.text for circle in chart(page, "beta").all("circle"))
    assert EVIL in table_called(page, "Sites left out").text
    assert EVIL in page.one("pre").text


def test_a_page_is_one_file_that_loads_nothing_and_runs_one_script(tmp_path):
    text = write_report(write_run(tmp_path, lines(1, 2))).read_text(encoding="utf-8")
    page = read(text)
    assert not re.findall(
        r"(?:https?:)?//\w", re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    )
    assert [link.attributes["href"] for link in page.all("link")] == ["data:,"]
    policy = next(
        meta.attributes["content"] for meta in page.all("meta") if "http-equiv" in meta.attributes
    )
    script = page.one("script").text
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{checksum}'" in policy


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
    assert len(chart(page, "beta").all("circle")) == 3
    assert len(chart(page, "d2").all("circle")) == 6
    row_of_a = cells(table_called(page, "What every site brought"))[1]
    assert row_of_a[3:5] == ["0", "–"]


def test_a_method_without_weights_has_no_lines_of_them(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, beta=None)))
    weights = next(f for f in page.all("figure") if f.one("figcaption").text.startswith("Weight"))
    assert "No values yet." in weights.text


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
    assert not page.all("svg")


def test_a_run_that_stopped_early_says_so(tmp_path):
    page = page_of(write_run(tmp_path, lines(1, 2, validation_loss=0.5), rounds=9))
    assert "Stopped early after 2 of 9 rounds." in page.one("header").text
    assert len(chart(page, "loss").all("path", class_="line")) == 2


def test_a_regression_has_a_loss_and_no_accuracy(tmp_path):
    history = lines(1, 2, accuracy=None, balanced_accuracy=None, loss=0.25)
    page = page_of(write_run(tmp_path, history, n_classes=None, n_test=20))
    assert page.one("p", class_="verdict").text == "fedgp for home: squared error 0.250"
    assert "accuracy" not in page.one("header").text
    assert "Only 20 test samples" in page.one("p", class_="caution").text
    assert len(page.all("svg")) == 3


def test_the_warm_up_is_drawn_but_has_no_weights(tmp_path):
    warm = lines(-1, 0, beta=None, d2=None, sigma2=None, cosine=None, phase="warm-up")
    page = page_of(write_run(tmp_path, warm + lines(1, 2), rounds=2))
    assert len(chart(page, "loss").all("circle")) == 4
    assert len(chart(page, "beta").all("circle")) == 4
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


def test_a_quiet_run_has_no_section_about_failures(tmp_path):
    headings = [h.text for h in page_of(write_run(tmp_path, lines(1))).all("h2")]
    assert "Left out, and notes" not in headings


def test_the_command_says_everything_and_survives_a_shell(tmp_path):
    settings = {"lr": 0.05, "align": True, "class_weights": [1, 2.5], "device": "a b"}
    folder = write_run(tmp_path, lines(1), target="St. John's", settings=settings.items())
    words = shlex.split(page_of(folder).one("pre").text.replace("\\\n", " "))
    assert words[:5] == ["fedbridge", "run", "digits-noise", "--target", "St. John's"]
    assert words[5:11] == ["--method", "fedgp", "--rounds", "1", "--seed", "7"]
    said = [word for word, before in zip(words[1:], words, strict=False) if before == "--set"]
    assert said == ["model=mlp", "lr=0.05", "align=true", "class_weights=[1, 2.5]", "device=a b"]


def test_the_command_names_the_file_that_the_rows_came_from(tmp_path):
    folder = write_run(tmp_path, lines(1), origin="digits-noise.csv")
    assert "run digits-noise.csv" in page_of(folder).one("pre").text


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
    assert len(chart(page, "beta").all("path", class_="line")) == 50
    assert len(cells(table_called(page, "Measures by round"))) == 500
    assert "The last 500 of 600" in page.text


def test_the_same_files_give_the_same_page_and_nothing_is_left_beside_it(tmp_path):
    folder = write_run(tmp_path, lines(1, 2))
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert write_report(folder) == folder / "report.html"
    assert not list(folder.glob(".*"))


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
