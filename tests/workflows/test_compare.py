"""Comparisons: every cell is a run, what is finished stays, and the table tells the truth."""

import json
import os
import signal
import subprocess
import sys
import time
from statistics import mean, stdev

import pytest

from fedbridge import methods
from fedbridge.base.errors import OptionError, UnknownNameError, UnknownOptionError
from fedbridge.base.processes import work_in_processes
from fedbridge.evaluation.intervals import wilson_interval
from fedbridge.methods import alone, finetune
from fedbridge.report.result_tables import comparison_table
from fedbridge.report.tables import to_markdown
from fedbridge.runs.comparison import CellResult, Comparison, ComparisonFolder
from fedbridge.runs.folder import RunFolderError
from fedbridge.runs.variant import Variant
from fedbridge.workflows.compare import ALONE, CONTROLS, ComparisonPlan, Setting, compare

SMALL = {"n_target": 12}
NOISE = Setting("noise", "digits-noise", options=SMALL)
CONTRAST = Setting("contrast", "digits-contrast", options=SMALL)
QUICK = {"steps": 2, "workers": 1}


def quick(out=None, settings=(NOISE,), methods=("fedda",), seeds=(0,), rounds=1, **options):
    return compare(settings, methods, seeds, rounds, out, alone=False, **(QUICK | options))


def scores(comparison):
    return {(c.setting, c.method, c.seed): c.score for c in comparison.cells}


def markdown(comparison):
    return to_markdown(comparison_table(comparison))


def summary(accuracy, n_test=100):
    interval = wilson_interval(accuracy, n_test)
    return {"accuracy": accuracy, "score": None, "accuracy_interval": interval}


def table_of(values, seeds):
    """A comparison with the given accuracies, {(setting, method): one per seed}."""
    cells = [
        CellResult(setting, method, seed, None, summary(value))
        for (setting, method), accuracies in values.items()
        for seed, value in zip(seeds, accuracies, strict=True)
    ]
    settings, names = (tuple(dict.fromkeys(key[k] for key in values)) for k in (0, 1))
    bounds = tuple(filter(methods.is_bound, names))
    return Comparison(settings, names, tuple(seeds), 10, tuple(cells), "note", bounds)


class TestTable:
    def test_an_entry_is_mean_and_sample_deviation_over_seeds(self):
        (row,) = table_of({("s", "a"): [50.0, 60.0, 61.0]}, [0, 1, 2]).rows()
        (entry,) = row.entries
        assert entry.mean == pytest.approx(mean([50, 60, 61]))
        assert entry.spread == pytest.approx(stdev([50, 60, 61]))
        assert entry.text() == "57.0 (6.1)"

    def test_one_seed_shows_the_confidence_interval_of_its_test_set_and_says_so(self):
        comparison = table_of({("s", "a"): [80.0]}, [0])
        low, high = wilson_interval(80.0, 100)
        assert comparison.rows()[0].entries[0].spread == pytest.approx((high - low) / 2)
        assert "confidence interval" in comparison.notes()[0]

    def test_the_best_of_every_column_is_bold_and_what_looks_equal_is_equal(self):
        values = {("s", "a"): [80.01], ("s", "b"): [80.0], ("t", "a"): [10.0], ("t", "b"): [20.0]}
        text = markdown(table_of(values, [0]))
        a, b = (line for line in text.splitlines() if line.startswith(("| a", "| b")))
        assert [cell.strip().startswith("**") for cell in a.split("|")[2:5]] == [True, False, False]
        assert [cell.strip().startswith("**") for cell in b.split("|")[2:5]] == [True, True, True]

    def test_bounds_are_never_the_best(self):
        comparison = table_of({("s", "oracle"): [99.0], ("s", "fedavg"): [80.0]}, [0])
        assert [row.entries[0].best for row in comparison.rows()] == [False, True]
        assert any(note.startswith("oracle: bounds") for note in comparison.notes())

    def test_several_settings_have_an_average(self):
        comparison = table_of({("s", "a"): [80.0], ("t", "a"): [60.0]}, [0])
        assert comparison.columns == ("s", "t", "average")
        assert comparison.rows()[0].entries[-1].mean == 70.0

    def test_a_missing_run_is_no_number(self):
        cells = (CellResult("s", "a", 0, error="broken"), CellResult("s", "b", 0, None, summary(9)))
        comparison = Comparison(("s",), ("a", "b"), (0,), 10, cells, "note")
        assert [row.entries[0].text()[:1] for row in comparison.rows()] == ["–", "9"]
        assert "1 of 2 runs failed" in comparison.notes()[-1]

    def test_names_cannot_break_the_markdown(self):
        head = markdown(table_of({("a|b\nc", "m"): [1.0]}, [0])).splitlines()[0]
        assert head == r"| method | a\|b c |"

    def test_regression_shows_the_score(self):
        told = {"accuracy": None, "score": -0.25, "accuracy_interval": None}
        comparison = Comparison(
            ("s",), ("a",), (0,), 10, (CellResult("s", "a", 0, None, told),), ""
        )
        assert comparison.rows()[0].entries[0].text(comparison.digits) == "-0.2500"
        assert comparison.notes()[0].startswith("Negative test loss")


class TestPlan:
    def plan(self, *names, **options):
        return ComparisonPlan.of([NOISE], names, [0], 3, options)

    def test_controls_are_always_there_and_never_twice(self):
        assert self.plan("fedda", "target-only").methods == (*CONTROLS, *ALONE, "fedda")

    def test_the_stand_alone_baselines_are_there_unless_switched_off(self):
        plans = [
            ComparisonPlan.of([NOISE], ["fedda"], [0], 3, {}, alone=on) for on in (True, False)
        ]
        assert [plan.methods for plan in plans] == [
            (*CONTROLS, *ALONE, "fedda"),
            (*CONTROLS, "fedda"),
        ]
        asked_for = ComparisonPlan.of([NOISE], ALONE, [0], 3, {}, alone=False)
        assert asked_for.methods == (*CONTROLS, *ALONE)

    def test_the_matched_control_matches_the_methods_that_shorten_the_step(self):
        plan = self.plan("fedgp", "fedda", beta=0.3)
        assert plan.options_for(Variant("target-only-matched")) == {"match": "fedgp", "beta": 0.3}
        assert "like fedgp and fedda" in plan.control_note

    def test_without_such_methods_it_is_target_only(self):
        plan = self.plan("auto")
        assert plan.options_for(Variant("target-only-matched")) == {"match": "auto"}
        assert "is target-only here" in plan.control_note

    def test_options_go_only_to_methods_that_have_them(self):
        plan = self.plan("fedda", "auto", beta=0.3, folds=3, lr=0.2)
        assert plan.options_for(Variant("fedda")) == {"beta": 0.3, "lr": 0.2}
        assert plan.options_for(Variant("auto")) == {"folds": 3, "lr": 0.2}
        assert plan.options_for(Variant("source-only")) == {"lr": 0.2}

    def test_a_setting_may_have_options_of_its_runs_which_go_first(self):
        settings = [NOISE, Setting("half", "digits-noise", options=SMALL, run={"beta": 0.5})]
        plan = ComparisonPlan.of(settings, ["fedda", "auto"], [0], 1, {"beta": 0.3, "lr": 0.2})
        used = {
            cell.setting.label: cell.options for cell in plan.cells(None) if cell.method == "fedda"
        }
        assert used == {"noise": {"beta": 0.3, "lr": 0.2}, "half": {"beta": 0.5, "lr": 0.2}}
        assert [task.get("run") for task in plan.to_json()["tasks"]] == [None, {"beta": 0.5}]

    def test_a_misspelt_option_of_a_setting_is_refused(self):
        with pytest.raises(UnknownOptionError, match="bta"):
            ComparisonPlan.of(
                [Setting("s", "digits-noise", run={"bta": 0.5})], ["fedda"], [0], 1, {}
            )

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (([NOISE], ["fedda"], [0], 3, {"bta": 1}), UnknownOptionError, "Did you mean 'beta'"),
            (([NOISE], ["fedaa"], [0], 3, {}), UnknownNameError, "Did you mean 'fedda'"),
            (([NOISE, NOISE], ["fedda"], [0], 3, {}), OptionError, "noise twice"),
            (([NOISE], ["fedda"], [1, 1], 3, {}), OptionError, "`seeds`.*1 twice"),
            (([NOISE], ["fedda"], [], 3, {}), OptionError, "at least one of `seeds`"),
            (([], ["fedda"], [0], 3, {}), OptionError, "at least one of `settings`"),
            (([NOISE], ["fedda"], [0], 0, {}), OptionError, "`rounds`"),
        ],
    )
    def test_mistakes_show_before_anything_runs(self, arguments, error, message):
        with pytest.raises(error, match=message):
            ComparisonPlan.of(*arguments)

    def test_a_bad_value_shows_before_anything_runs(self, tmp_path):
        with pytest.raises(OptionError, match="learning rate"):
            quick(tmp_path / "c", lr=-1.0)
        assert not (tmp_path / "c").exists()

    @pytest.mark.parametrize("label", ["../../x", "/etc", "a/b", "..", "", "ä ö", "x" * 300])
    def test_a_hostile_label_stays_in_the_folder(self, tmp_path, label):
        cells = ComparisonPlan.of([Setting(label, "digits-noise")], ["fedda"], [0], 1, {}).cells(
            tmp_path
        )
        for cell in cells:
            assert cell.folder.parent == tmp_path / "cells"
            assert cell.folder.resolve().parent == (tmp_path / "cells").resolve()
            assert len(cell.folder.name) < 200

    def test_labels_that_look_alike_have_folders_of_their_own(self, tmp_path):
        settings = [Setting(label, "digits-noise") for label in ("a b", "a-b", "a/b")]
        cells = ComparisonPlan.of(settings, ["auto"], [0, 1], 1, {}).cells(tmp_path)
        assert len({cell.folder for cell in cells}) == len(cells)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    quick(folder)
    return folder


class TestFolder:
    def test_every_cell_is_a_run_and_the_files_say_what_was_found(self, tmp_path):
        comparison = quick(tmp_path, settings=(NOISE, CONTRAST))
        assert len(comparison.finished) == 2 * 4
        content = json.loads((tmp_path / "comparison.json").read_text())
        assert content["settings"] == ["noise", "contrast"]
        assert content["methods"] == [*CONTROLS, "fedda"]
        for cell in content["cells"]:
            there = json.loads((tmp_path / cell["folder"] / "summary.json").read_text())
            assert there["accuracy"] == cell["summary"]["accuracy"]
        assert (tmp_path / "table.md").read_text() == markdown(comparison)

    @pytest.mark.parametrize(("pause", "times"), [(0.0, 1 + 4 + 1), (1e9, 1 + 1)])
    def test_its_file_is_written_at_most_once_a_pause(self, tmp_path, monkeypatch, pause, times):
        written, write = [], ComparisonFolder.write

        def watched(folder, *content):
            written.append(folder)
            write(folder, *content)

        monkeypatch.setattr(ComparisonFolder, "write", watched)
        monkeypatch.setattr("fedbridge.workflows.compare.PAUSE", pause)
        quick(tmp_path)
        assert len(written) == times

    def test_when_it_is_stopped_its_file_says_what_is_finished(self, tmp_path):
        def stop(done, total, name):
            if done > 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            quick(tmp_path, progress=stop)
        content = json.loads((tmp_path / "comparison.json").read_text())
        assert sum(cell["summary"] is not None for cell in content["cells"]) == 2

    def test_finished_cells_are_kept(self, tmp_path):
        first = quick(tmp_path)
        before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("cells/*/summary.json")}
        second = quick(tmp_path)
        assert (first.kept, second.kept) == (0, 4)
        assert scores(second) == scores(first)
        assert {p: p.stat().st_mtime_ns for p in before} == before

    def test_a_comparison_may_grow(self, tmp_path):
        quick(tmp_path)
        grown = quick(
            tmp_path, settings=(NOISE, CONTRAST), methods=("fedda", "fedgp"), seeds=(0, 1)
        )
        assert (grown.kept, len(grown.finished)) == (4, 2 * 5 * 2)

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"rounds": 2}, "rounds"),
            ({"lr": 0.5}, "options"),
            ({"methods": ("fedgp",)}, "methods"),
            ({"seeds": (1,)}, "seeds"),
            ({"settings": (CONTRAST,)}, "tasks"),
        ],
    )
    def test_a_folder_with_another_comparison_is_refused(self, finished, change, named):
        with pytest.raises(RunFolderError, match=f"holds a different one .other {named}"):
            quick(finished, **change)

    def test_a_folder_with_other_files_is_refused(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("")
        with pytest.raises(RunFolderError, match="holds other files"):
            quick(tmp_path)

    @pytest.mark.parametrize("content", ['{"format": 99}', "{"])
    def test_a_file_of_another_format_is_refused(self, tmp_path, content):
        (tmp_path / "comparison.json").write_text(content)
        with pytest.raises(RunFolderError, match=r"format 99|Could not read"):
            quick(tmp_path)

    def test_a_finished_cell_of_other_data_is_not_taken_for_this_one(self, tmp_path):
        table = tmp_path / "d.csv"
        rows = [f"{site},{k % 7},{k % 2}" for site in "ab" for k in range(40)]
        table.write_text("\n".join(["site,x,label", *rows]))
        setting = Setting("a", str(table), "a")
        quick(tmp_path / "c", settings=(setting,))
        table.write_text("\n".join(["site,x,label", *rows[:-1], "b,3,0"]))
        again = quick(tmp_path / "c", settings=(setting,))
        assert again.kept == 0
        assert all("other data_sha256" in cell.error for cell in again.failures)

    def test_without_a_folder_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert quick().finished
        assert not list(tmp_path.iterdir())


class TestCells:
    def test_processes_do_not_change_a_bit(self):
        names = ("auto", "fedgp-joint", "recalibrate", "offset", "pfedfda", *ALONE)
        alone = quick(methods=names, rounds=2)
        together = quick(methods=names, rounds=2, workers=3)
        assert scores(together) == scores(alone)
        losses = [[cell.summary["loss"] for cell in c.cells] for c in (alone, together)]
        assert losses[0] == losses[1]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_failing_cell_does_not_stop_the_others(self, workers):
        broken = Setting("broken", "digits-noise", options={"n_target": 10**6})
        comparison = quick(settings=(NOISE, broken), workers=workers)
        assert {cell.setting for cell in comparison.failures} == {"broken"}
        assert len(comparison.finished) == 4
        assert all(cell.error for cell in comparison.failures)

    def test_a_method_that_does_not_apply_is_no_failure_and_the_table_says_why(self):
        comparison = quick(methods=("coral",), model="linear")
        (cell,) = (cell for cell in comparison.cells if cell.method == "coral")
        assert cell.unmet
        assert not comparison.failures
        assert any("`linear` has none" in note for note in comparison.notes())
        assert not any("failed" in note for note in comparison.notes())

    def test_progress_ends_when_all_is_done(self):
        told = []
        options = QUICK | {"workers": 2}
        compare(
            [NOISE],
            ["fedda"],
            [0],
            2,
            progress=lambda *args: told.append(args),
            alone=False,
            **options,
        )
        done = [entry[0] for entry in told]
        assert done == sorted(done)
        assert told[-1][:2] == (4, 4)

    def test_the_score_is_that_of_the_run(self):
        comparison = quick(methods=("fedda",), rounds=7)
        cell = next(cell for cell in comparison.cells if cell.method == "fedda")
        assert cell.score == cell.summary["accuracy"]

    def test_every_method_can_be_compared(self, monkeypatch):
        monkeypatch.setattr(finetune, "EPOCHS", (1, 3))
        monkeypatch.setattr(alone, "TREES", 9)
        comparison = quick(methods=methods.names())
        assert not comparison.failures
        assert len(comparison.methods) == len(methods.names())


def double(item, tell):
    tell(f"at {item}")
    if item == "die":
        os._exit(3)
    return item * 2


class TestProcesses:
    def test_what_they_tell_and_return_arrives(self):
        events = list(work_in_processes(double, [1, 2, 3], processes=2))
        assert {event.item: event.value for event in events if event.kind == "done"} == {
            0: 2,
            1: 4,
            2: 6,
        }
        assert sum(event.kind == "told" for event in events) == 3

    def test_one_that_dies_is_replaced(self):
        events = list(work_in_processes(double, ["die", 1, "die", 2], processes=2))
        ends = {event.item: (event.kind, event.value) for event in events if event.kind != "told"}
        assert ends == {0: ("died", 3), 1: ("done", 2), 2: ("died", 3), 3: ("done", 4)}


SCRIPT = """
from fedbridge.workflows.compare import Setting, compare
settings = [Setting("noise", "digits-noise", options={"n_target": 12})]
done = compare(settings, ["fedda"], [0], 40, "c", alone=False, steps=1, workers=2)
print(len(done.finished), done.kept)
"""


def count(folder, pattern):
    return len(list(folder.glob(pattern)))


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_script_without_a_main_guard_is_stopped_and_goes_on(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    start = [sys.executable, "script.py"]
    process = subprocess.Popen(start, cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_until(lambda: count(tmp_path, "c/cells/*/checkpoint/*.json") > 4)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    finished = count(tmp_path, "c/cells/*/summary.json")
    assert finished < 4
    shown = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["4", str(finished)]
