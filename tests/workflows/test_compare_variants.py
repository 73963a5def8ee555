"""Variants as rows of a comparison, and comparisons in Python and from a file."""

import json
import re
from pathlib import Path

import pytest
from small import blobs, line
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import OptionError, UnknownNameError, UnknownOptionError
from fedbridge.methods import is_bound
from fedbridge.report import write_report, write_tables
from fedbridge.runs.comparison import read_comparison
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.variant import Variant, parse_variants
from fedbridge.workflows.compare import CONTROLS, ComparisonPlan
from fedbridge.workflows.compared import (
    Setting,
    is_comparison_file,
    read_comparison_file,
    seeds_of,
    settings_of,
)
from fedbridge.workflows.watch import look

NOISE = Setting("noise", "digits-noise", options={"n_target": 12})
QUICK = {"steps": 2, "workers": 1}
SEVERAL = "fedgp[beta=0.5],fedgp[beta=1],fedgp[filter=false],fedgp-auto[batch_size_target=4]"


def plan(methods, rounds=3, settings=(NOISE,), **options):
    return ComparisonPlan.of(settings, methods, [0], rounds, options, alone=False)


def quick(methods, out=None, seeds=1, rounds=1, tasks=NOISE, **options):
    return fb.compare(tasks, methods, seeds, rounds, out, alone=False, **QUICK | options)


def options_of(found, name):
    (cell,) = (cell for cell in found.cells(None) if cell.variant.name == name)
    return cell.options


class TestPlan:
    def test_every_variant_is_a_row_with_a_name_and_a_folder(self, tmp_path):
        found = plan(SEVERAL)
        assert found.methods == (*CONTROLS, *(v.name for v in parse_variants(SEVERAL)))
        folders = {cell.folder.name for cell in found.cells(tmp_path)}
        assert len(folders) == len(found.methods)
        assert all(re.fullmatch(r"[\w+.-]+", name) for name in folders)

    def test_its_options_go_before_those_of_the_setting_and_of_the_comparison(self):
        dial = Setting("s", "digits-noise", run={"beta": 0.3, "lr": 0.2})
        found = plan("fedgp[beta=1],fedgp[lr=0.5]", settings=[dial], beta=0.1, epochs=2)
        assert options_of(found, "fedgp[beta=1]") == {"beta": 1, "lr": 0.2, "epochs": 2}
        assert options_of(found, "fedgp[lr=0.5]") == {"beta": 0.3, "lr": 0.5, "epochs": 2}

    def test_rounds_may_be_its_own(self):
        rounds = {cell.variant.name: cell.rounds for cell in plan("ditto[rounds=150]").cells(None)}
        assert rounds["ditto[rounds=150]"] == 150
        assert rounds["target-only"] == 3
        assert "rounds" not in options_of(plan("ditto[rounds=150]"), "ditto[rounds=150]")

    def test_the_control_matches_the_first_step_and_the_note_says_which_it_does_not(self):
        found = plan("fedgp[beta=0.3,lr=0.2],fedda[beta=0.3,lr=0.2],fedgp[beta=1],fedavg")
        control = options_of(found, "target-only-matched")
        assert control == {"match": "fedgp", "beta": 0.3, "lr": 0.2}
        note = found.control_note
        assert "like fedgp[beta=0.3,lr=0.2] and fedda[beta=0.3,lr=0.2];" in note
        assert "target-only-matched[beta=1,match=fedgp] matches fedgp[beta=1]" in note

    def test_what_changes_no_step_needs_no_other_control(self):
        found = plan("fedgp,fedgp[filter=false],fedgp[beta=0.5],fedgp[rounds=9]")
        named = [variant.name for variant in found.matched_to]
        assert named == ["fedgp", "fedgp[filter=false]", "fedgp[beta=0.5]"]
        assert options_of(found, "target-only-matched") == {"match": "fedgp"}

    def test_controls_may_have_variants_too(self):
        found = plan("target-only,target-only[lr=0.5]")
        assert found.methods == (*CONTROLS, "target-only[lr=0.5]")

    def test_all_may_be_beside_variants(self):
        found = plan("all,fedgp[beta=1]")
        assert len(found.methods) == len(fb.methods.names()) + 1

    @pytest.mark.parametrize(
        ("methods", "error", "said"),
        [
            ("fedgp[bta=1]", UnknownOptionError, "method 'fedgp'.*'bta'.*Did you mean 'beta'"),
            ("fedavg,fedgp[penalty=1]", UnknownOptionError, "method 'fedgp'.*'penalty'"),
            ("fedgp[workers=2]", UnknownOptionError, "'workers'"),
            ("fedgp[protocol=paper]", OptionError, "--vary protocol=fair,paper"),
            ("fedgpp[beta=1]", UnknownNameError, "Did you mean 'fedgp'"),
            ("fedgp[beta=.5],fedgp[beta=0.50]", OptionError, r"fedgp\[beta=0.5\] twice"),
            ("fedgp[beta=1,label=a],fedgp[beta=1]", OptionError, "'a' and .* are the same"),
            ("fedgp[beta=1,label=a],fedda[label=a]", OptionError, "a twice"),
            ("fedgp[label=fedda]", OptionError, "'fedda' is the name of another method"),
            ("fedgp[rounds=0]", OptionError, r"fedgp\[rounds=0\]: .*`rounds`"),
            ("fedgp[rounds=1.5]", OptionError, "`rounds`"),
        ],
    )
    def test_mistakes_show_when_it_is_made(self, methods, error, said):
        with pytest.raises(error, match=said):
            plan(methods)

    @pytest.mark.parametrize(
        ("methods", "said"),
        [
            ("fedgp[beta=7]", r"fedgp\[beta=7\]: Expected `beta` in \[0, 1\]"),
            ("fedgp[beta=[0.1,0.2]]", r"one per source \(4\)"),
            ("fedda[lr=-1]", r"fedda\[lr=-1\]: Expected a learning rate"),
            ("fedavg,ditto[penalty=-1]", r"ditto\[penalty=-1\]: Expected `penalty`"),
            ("auto[folds=1]", r"auto\[folds=1\]: Expected `folds`"),
            ("trimmed-mean[trim=2]", r"trimmed-mean\[trim=2\]: "),
            ("fedgp[weights=sample]", "Did you mean 'samples'"),
        ],
    )
    def test_bad_values_show_before_any_run(self, tmp_path, methods, said):
        with pytest.raises(OptionError, match=said):
            quick(methods, tmp_path / "c")
        assert not (tmp_path / "c").exists()

    def test_two_runs_never_share_a_folder(self):
        settings = [Setting("x", "digits-noise"), Setting("x-fedda", "digits-noise")]
        with pytest.raises(OptionError, match=r"'x-fedda-auto-0' would be that of 2"):
            plan("auto,fedda-auto", settings=settings)

    def test_a_cell_has_a_key_of_what_it_is(self):
        texts = ("fedgp[beta=.5]", "fedgp", "fedgp[beta=1]")
        specs = [plan(text).cells(None)[-1].spec() for text in texts]
        assert specs[0].key == plan("fedgp", beta=0.5).cells(None)[-1].spec().key
        assert len({spec.key for spec in specs}) == 3
        assert specs[0].task_options == {"n_target": 12}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison of variants in a folder."""
    folder = tmp_path_factory.mktemp("variants") / "c"
    methods = [*parse_variants(SEVERAL), Variant("fedavg", {"rounds": 2}, "long & <b>_1")]
    return quick(methods, folder, seeds=2), folder, methods


class TestFolder:
    def test_every_variant_was_run_with_its_options(self, made):
        found, folder, _ = made
        assert len(found.finished) == len(found.cells) == 8 * 2
        configs = {c.method: RunFolder(folder / c.folder).config() for c in found.cells}
        assert configs["fedgp[beta=1]"]["options"] == {"beta": 1}
        assert configs["fedgp-auto[batch_size_target=4]"]["settings"]["batch_size_target"] == 4
        assert configs["long & <b>_1"]["method"] == "fedavg"
        assert configs["long & <b>_1"]["rounds"] == 2
        same = {(c.method, c.seed): c.summary["loss"] for c in found.cells}
        assert same["fedgp[beta=0.5]", 0] != same["fedgp[beta=1]", 0]

    def test_finished_runs_are_kept_and_variants_may_be_added(self, tmp_path):
        quick("fedavg[lr=0.1]", tmp_path)
        assert quick(["fedavg[lr=.10]"], tmp_path).kept == 4
        grown = quick("fedavg[lr=0.1],fedavg[lr=0.2]", tmp_path)
        assert (grown.kept, len(grown.finished)) == (4, 5)

    def test_a_label_that_means_something_else_now_is_refused(self, tmp_path):
        quick({"mine": ("fedgp", {"beta": 0.5})}, tmp_path)
        with pytest.raises(RunFolderError, match="other methods"):
            quick({"mine": ("fedgp", {"beta": 0.6})}, tmp_path)

    def test_the_record_says_what_the_rows_are(self, made):
        found, folder, _ = made
        record = read_comparison(folder, is_bound).comparison
        for variant in found.variants:
            assert record.variant(variant.name) == variant
        written = json.loads((folder / "comparison.json").read_text())
        assert written["variants"]["fedgp[beta=1]"] == {"method": "fedgp", "options": {"beta": 1}}
        assert "fedavg" not in written["variants"]

    def test_a_comparison_without_variants_is_written_as_it_always_was(self, tmp_path):
        quick("fedavg", tmp_path)
        assert "variants" not in json.loads((tmp_path / "comparison.json").read_text())

    def test_watching_counts_the_rounds_of_every_variant(self, made):
        cells = {cell.method: cell for cell in look(made[1]).cells}
        assert look(made[1]).state == "finished"
        assert (cells["long & <b>_1"].rounds, cells["fedgp[beta=1]"].rounds) == (2, 1)

    def test_names_are_text_in_every_table_and_on_the_page(self, made, tmp_path):
        write_tables(made[1], tmp_path)
        latex = (tmp_path / "comparison.tex").read_text()
        assert r"fedgp-auto{[}batch\_size\_target=4{]}" in latex
        assert r"long \& \textless{}b\textgreater{}\_1" in latex
        assert "| fedgp\\[beta=1\\] |" in (tmp_path / "comparison.md").read_text()
        assert "\nfedgp[beta=1]," in (tmp_path / "comparison.csv").read_text()
        page = write_report(made[1]).read_text(encoding="utf-8")
        assert "<b>_1" not in page
        assert "long &amp; &lt;b&gt;_1" in page
        assert "fedgp[beta=1]" in page
        assert "fedavg[rounds=2,label=" in page.replace("&#x27;", "'"), "the command has it"
        assert "long & <b>_1: 2 rounds." in made[0].notes()

    def test_its_own_file_says_the_same_comparison(self, made, tmp_path):
        found, folder, _ = made
        again = compare_file(folder / "comparison.toml", folder)
        assert again.kept == len(again.cells)
        assert again.variants == found.variants

    def test_it_can_be_run_elsewhere(self, tmp_path):
        options = {"blocks": None, "class_weights": [1.0] * 10}
        first = quick("fedgp[beta=1]", tmp_path / "a", [1], **options)
        second = compare_file(tmp_path / "a/comparison.toml", tmp_path / "b")
        texts = [(tmp_path / name / "comparison.toml").read_text() for name in "ab"]
        assert texts[0] == texts[1]
        losses = [[cell.summary["loss"] for cell in c.cells] for c in (first, second)]
        assert losses[0] == losses[1]

    def test_data_are_found_from_where_the_file_lies(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        rows = [f"{site},{k % 7},{k % 2}" for site in "ab" for k in range(40)]
        Path("d.csv").write_text("\n".join(["site,x,label", *rows]))
        quick("fedavg", "runs/c", tasks={"task": "d.csv", "target": "a"})
        Path("elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        assert compare_file(Path("../runs/c/comparison.toml"), "again").finished


class TestFrame:
    def test_a_row_per_finished_run_with_the_options_of_its_variant(self, made):
        found = made[0]
        frame = found.frame()
        assert len(frame) == 16
        row = frame[(frame.method == "fedgp[beta=1]") & (frame.seed == 1)].iloc[0]
        assert (row.base, row.beta, row.rounds) == ("fedgp", 1, 1)
        assert (row.task, row.target, row.setting) == ("digits-noise", "target", "noise")
        (cell,) = (c for c in found.cells if (c.method, c.seed) == ("fedgp[beta=1]", 1))
        assert row.accuracy == cell.summary["accuracy"]
        assert row.accuracy_low < row.accuracy < row.accuracy_high
        assert frame[frame.method == "target-only"].beta.isna().all()
        means = frame.groupby("method").accuracy.mean()
        assert means["fedgp[beta=1]"] == pytest.approx(found.score("noise", "fedgp[beta=1]"))

    def test_a_regression_has_scores_and_no_accuracy(self):
        frame = quick("fedavg", tasks=line()).frame()
        assert frame.accuracy.isna().all()
        assert (frame.score < 0).all()

    def test_failed_runs_have_no_row(self):
        broken = Setting("broken", "digits-noise", options={"n_target": 10**6})
        found = quick("fedavg", tasks=[NOISE, broken])
        assert set(found.frame().setting) == {"noise"}


class TestTasks:
    def test_nothing_is_written_without_a_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert len(quick(["fedavg"], seeds=[3, 5]).frame()) == 8
        assert not list(tmp_path.iterdir())

    def test_a_name_takes_options_of_tasks_beside_those_of_runs(self):
        found = quick("fedavg", tasks="digits-noise", n_target=14, lr=0.1)
        assert set(found.frame().n_target) == {14}

    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_loaded_task_is_taken_as_it_is(self, tmp_path, workers):
        task = blobs()
        found = quick("fedavg", tmp_path, 2, tasks=task, workers=workers, model=lambda: tiny(2))
        assert not found.failures
        losses = {(c.method, c.seed): c.summary["loss"] for c in found.cells}
        alone = fb.run(task, "fedavg", 1, 1, model=lambda: tiny(2), **QUICK)
        assert losses["fedavg", 1] == alone.summary["loss"]
        assert quick("fedavg", tmp_path, 2, tasks=task, model=lambda: tiny(2)).kept == 8
        assert not (tmp_path / "comparison.toml").exists(), "no file can name these rows"
        assert "<pre" not in write_report(tmp_path).read_text(encoding="utf-8")

    def test_tasks_of_all_kinds_stand_in_one_table(self):
        tasks = [
            "digits-noise",
            ("digits-noise", {"noise": 0.2, "n_target": 12}),
            {"task": "digits-contrast", "label": "inverted", "run": {"lr": 0.2}},
            blobs(),
        ]
        found = settings_of(tasks)
        assert [setting.label for setting in found] == [
            "digits-noise",
            "digits-noise, noise 0.2, n_target 12",
            "inverted",
            "arrays",
        ]
        assert found[2].run == {"lr": 0.2}

    def test_targets_are_settings(self, tmp_path):
        rows = [f"{site},{k % 7},{k % 2}" for site in "ab" for k in range(40)]
        (tmp_path / "d.csv").write_text("\n".join(["site,x,label", *rows]))
        found = settings_of({"task": tmp_path / "d.csv", "targets": "all"})
        assert [(setting.label, setting.target) for setting in found] == [("a", "a"), ("b", "b")]

    @pytest.mark.parametrize(
        ("tasks", "said"),
        [
            (3, "Expected a task"),
            ([3], "Expected a task"),
            ({"target": "a"}, "Expected a task"),
            ({"task": "digits-noise", "optons": {}}, "Did you mean 'options'"),
            ({"task": "digits-noise", "options": 3}, "names and values"),
            ({"task": "digits-noise", "target": "target", "targets": "all"}, "either"),
            ({"task": "digits-noise", "targets": "north"}, "'all' or a list"),
            ({"task": "digits-noise", "label": 3}, "label"),
            (("digits-noise", {"seed": 3}), "'seed' is none"),
            ((blobs(), {"noise": 3}), "loaded already"),
        ],
    )
    def test_what_is_no_task_is_refused(self, tasks, said):
        with pytest.raises(OptionError, match=said):
            settings_of(tasks)

    def test_a_loaded_task_takes_no_options(self):
        with pytest.raises(UnknownOptionError, match="loaded already, but got noise"):
            quick("fedavg", tasks=blobs(), noise=0.3)

    def test_seeds_are_counted_or_listed(self):
        assert seeds_of(3) == (0, 1, 2)
        assert seeds_of([4, 2]) == (4, 2)
        for wrong in ("3", 1.5, -1, [-1], True, 10**6):
            with pytest.raises(OptionError, match="`seeds`"):
                seeds_of(wrong)


def tiny(inputs):
    return nn.Linear(inputs, 3)


FILE = """
seeds = 2
rounds = 1
methods = ["fedavg", "fedgp[beta=1]", { method = "fedgp", options = { blocks = "none" } }]

[options]
steps = 2
weights = "samples"

[[tasks]]
task = "d.csv"
targets = "all"

[[tasks]]
task = "digits-noise"
options = { n_target = 12 }
run = { lr = 0.2 }
"""


def compare_file(path, out=None):
    said = read_comparison_file(path)
    options = said.pop("options")
    return fb.compare(**said, out=out, **options | {"workers": 1})


class TestFile:
    @pytest.fixture
    def folder(self, tmp_path):
        rows = [f"{site},{k % 7},{k % 2}" for site in "ab" for k in range(40)]
        (tmp_path / "d.csv").write_text("\n".join(["site,x,label", *rows]))
        (tmp_path / "mine.toml").write_text(FILE)
        return tmp_path

    def test_it_says_all_of_a_comparison(self, folder):
        said = read_comparison_file(folder / "mine.toml")
        found = settings_of(said["tasks"])
        assert [setting.label for setting in found] == ["a", "b", "digits-noise"]
        assert Path(found[0].task) == folder / "d.csv"
        assert said["options"] == {"steps": 2, "weights": "samples"}
        assert (said["seeds"], said["rounds"]) == (2, 1)
        assert plan(said["methods"]).methods[3:] == (
            "fedavg",
            "fedgp[beta=1]",
            "fedgp[blocks=none]",
        )

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("seeds = 2", "sedes = 2"), "Did you mean 'seeds'"),
            (("[[tasks]]", "[tasks]"), "cannot be read"),
            (("targets", "tragets"), "Did you mean 'targets'"),
            (("method =", "methd ="), "Did you mean 'method'"),
            (("seeds = 2", "seeds = 'x'"), "`seeds`"),
            (("rounds = 1", "rounds = 'x'"), "`rounds`"),
            (("beta=1", "bta=1"), "Did you mean 'beta'"),
            (("steps = 2", "stps = 2"), "'stps'"),
            (("[[tasks]]", "[[task]]"), "Did you mean 'tasks'"),
        ],
    )
    def test_mistakes_are_named(self, folder, change, said):
        (folder / "mine.toml").write_text(FILE.replace(*change))
        with pytest.raises(fb.FedbridgeError, match=said):
            compare_file(folder / "mine.toml")

    def test_a_task_file_and_data_are_no_comparison_file(self, folder):
        assert is_comparison_file(str(folder / "mine.toml"))
        (folder / "task.toml").write_text('[task]\nname = "digits-noise"\n')
        (folder / "broken.toml").write_text("[[")
        for name in ("task.toml", "broken.toml", "d.csv", "none.toml"):
            assert not is_comparison_file(str(folder / name))
