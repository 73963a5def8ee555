"""Tables of the paper run here: shared runs, going on, ours beside theirs, and the controls."""

import json
import math
import re
import shlex
from dataclasses import replace
from statistics import mean, stdev

import pytest
import torch

import fedbridge as fb
from fedbridge.base.errors import DataError, OptionError, UnknownNameError
from fedbridge.cli.main import build_parser
from fedbridge.data.protocols import run_options
from fedbridge.experiments.catalogue import (
    Also,
    Experiment,
    Panel,
    PaperColumn,
    PaperRow,
    Quick,
    read,
)
from fedbridge.experiments.page import command, figure, reproduction_page, write_results
from fedbridge.experiments.reproduction import OF_RUNS, CellOutcome, Reproduction, summary_of
from fedbridge.experiments.tables import (
    cost_table,
    gain_tables,
    long_table,
    result_tables,
)
from fedbridge.federation import source_rounds
from fedbridge.federation.source_rounds import SourceRounds
from fedbridge.report import figure_sheet
from fedbridge.report.tables import to_csv, to_markdown
from fedbridge.runs.cell import CellSpec
from fedbridge.workflows import reproduce as module
from fedbridge.workflows.delta_errors import delta_error_of, initial_moments
from fedbridge.workflows.reproduce import (
    CellCache,
    MissingDataError,
    ReproductionPlan,
    check_data,
    load_experiment,
    needed_data,
    only_columns,
    only_rows,
    reproduce,
    with_controls,
)
from fedbridge.workflows.watch import WatchError, look

SMALL = """
title = "Digits with noise"
where = "nowhere"
form = "table"
score = "accuracy"
rounds = 2
seeds = 1
columns = [
    { label = "0.2", x = 0.2, task = "digits-noise", options = { noise = 0.2, n_target = 12 } },
    { label = "0.4", x = 0.4, task = "digits-noise", options = { noise = 0.4, n_target = 12 } },
    { label = "Avg", mean = true },
]

[quick]
rounds = 1
seeds = 1
columns = ["0.4"]

[[rows]]
label = "FedDA"
method = "fedda"
options = { beta = 0.25, steps = 1 }
paper = [50.0, 40.5, 45.25]

[[rows]]
label = "Cited"
cited = "somebody else, whose table it is"
paper = [60.0, nan, nan]
"""
OTHER = SMALL.replace('label = "0.2", x = 0.2', 'label = "little", x = 0.2').replace(
    'label = "FedDA"', 'label = "The same"'
)
TARGET = '\n[[rows]]\nlabel = "Target"\nmethod = "target-only"\noptions = { steps = 1 }\n'


@pytest.fixture
def file(tmp_path):
    def write(text=SMALL, name="small"):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return str(path)

    return write


def outcome(row, column, seed, accuracy, **more):
    spec = CellSpec("t", "m", seed, 3)
    beta = more.pop("beta", [[0.5]])
    summary = {"accuracy": accuracy, "score": None, "rounds": 3, "beta": beta, "sources": ["A"]}
    costs = {"seconds_train": 0.1, "seconds_aggregate": 0.002, "bytes_up": 6e6, "bytes_down": 3e6}
    return CellOutcome(row, column, seed, spec, {**summary, **costs, **more})


def experiment(rows, columns=None, **more):
    columns = columns or (
        PaperColumn("a", "t"),
        PaperColumn("b", "t"),
        PaperColumn("Avg", mean=True),
    )
    known = {"form": "table", "score": "accuracy", "rounds": 3, "seeds": 2} | more
    quick = Quick(1, 1)
    return Experiment("e", "E", "Table 1", columns=columns, rows=rows, quick=quick, **known)


ROW = PaperRow("R", "m", paper=(70.0, math.nan, 71.0), spread=(1.5, math.nan, math.nan))
TWO = Reproduction(
    experiment((ROW, PaperRow("C", "target-only"))),
    "fair",
    (0, 1),
    (
        *(outcome("R", "a", 0, 72.0), outcome("R", "a", 1, 75.0)),
        *(outcome("R", "b", 0, 60.0), outcome("R", "b", 1, 67.0)),
        *(outcome("C", "a", 0, 70.0), outcome("C", "a", 1, 74.0), outcome("C", "b", 0, 61.0)),
    ),
    {"R": "C"},
)


class TestNumbers:
    def test_ours_is_the_mean_over_seeds_and_its_spread_their_sample_deviation(self):
        pair = TWO.pair(ROW, 0)
        assert pair.ours == mean([72, 75]) == 73.5
        assert pair.spread == pytest.approx(stdev([72, 75]))
        assert (pair.count, pair.paper, pair.paper_spread) == (2, 70.0, 1.5)
        assert pair.difference == 3.5
        assert pair.text(1) == "73.5 (2.1) / 70.0 (1.5) / +3.5"

    def test_a_number_that_the_paper_does_not_print_has_no_difference(self):
        pair = TWO.pair(ROW, 1)
        assert pair.ours == 63.5
        assert pair.paper is None
        assert pair.difference is None
        assert pair.text(1) == "63.5 (4.9)"

    def test_a_mean_over_columns_is_taken_seed_by_seed(self):
        pair = TWO.pair(ROW, 2)
        assert pair.ours == mean([66, 71])
        assert pair.spread == pytest.approx(stdev([66, 71]))
        assert pair.difference == pytest.approx(-2.5)

    def test_a_mean_leaves_seeds_out_that_lack_a_column(self):
        pair = TWO.pair(PaperRow("C"), 2)
        assert (pair.ours, pair.count) == (mean([70, 61]), 1)

    def test_a_gain_is_over_the_control_seed_by_seed(self):
        gain = TWO.gain("R", 0)
        assert gain.ours == mean([2, 1])
        assert gain.spread == pytest.approx(stdev([2, 1]))
        assert TWO.gain("R", 1).ours == -1.0, "only seed 0 has both"
        assert TWO.gain("C", 0) is None

    def test_other_printed_numbers_stand_in_the_notes(self):
        row = PaperRow("R", "m", paper=(1.0,), also=(Also("Table 9", (2.5,)),))
        found = Reproduction(experiment((row,), (PaperColumn("a", "t"),)), "paper", (0,), ())
        assert "R has other numbers in Table 9: a 2.5." in found.notes()
        assert found.pair(row, 0).also == (("Table 9", 2.5),)

    def test_other_numbers_of_columns_that_are_left_out_are_no_note(self):
        row = PaperRow("R", "m", paper=(1.0,), also=(Also("Table 9", (math.nan,)),))
        found = Reproduction(experiment((row,), (PaperColumn("a", "t"),)), "paper", (0,), ())
        assert not any("Table 9" in note for note in found.notes())

    def test_a_row_without_a_method_shows_whose_numbers_they_are(self):
        cited = PaperRow("Best", paper=(80.0,), cited="DomainBed, its table")
        found = Reproduction(experiment((cited,), (PaperColumn("a", "t"),)), "paper", (0,), ())
        assert found.pair(cited, 0).text(1) == "– / 80.0 / –"
        assert "Best: DomainBed, its table" in found.notes()

    def test_weights_are_averaged_over_rounds_and_sources(self):
        told = [[0.2, None], [0.4, 0.9]]
        found = Reproduction(
            experiment((PaperRow("R", "m"),), (PaperColumn("a", "t"),), score="beta", form="betas"),
            "paper",
            (0,),
            (outcome("R", "a", 0, 1.0, beta=told, sources=["A", "B"]),),
        )
        assert found.pair(PaperRow("R"), 0).ours == pytest.approx(mean([0.2, 0.4, 0.9]))


class TestTables:
    def test_the_table_has_ours_the_papers_and_the_difference(self):
        text = to_markdown(result_tables(TWO)[0])
        assert r"| R | 73.5 (2.1) / 70.0 (1.5) / +3.5 | 63.5 (4.9) |" in text

    def test_columns_under_one_heading_have_a_table_of_their_own(self):
        columns = (PaperColumn("1", "t", group="G"), PaperColumn("1", "t", group="H"))
        found = Reproduction(experiment((PaperRow("R", "m"),), columns), "paper", (0,), ())
        captions = [table.caption for table in result_tables(found)]
        assert [caption.split(":")[0] for caption in captions] == ["E, G", "E, H"]
        assert len({table.name for table in result_tables(found)}) == 2

    def test_a_csv_has_a_line_per_cell(self):
        head, first, *_ = to_csv(long_table(TWO)).splitlines()
        assert head.startswith("row,method,group,column,ours,spread,runs,paper,paper spread,diff")
        row, method, _, column, ours, *_, gain = first.split(",")
        assert (row, method, column, float(ours), float(gain)) == ("R", "m", "a", 73.5, 1.5)

    def test_gains_name_the_control(self):
        (table,) = gain_tables(TWO)
        assert [cell.text for cell in table.rows[0][2:]] == ["+1.5 (0.7)", "-1.0", "+0.5"]
        assert table.rows[0][:2] == ("R", "C")

    def test_costs_are_per_round(self):
        (row, *_) = cost_table(TWO).rows
        assert [cell.value for cell in row[1:]] == [pytest.approx(v) for v in (0.1, 0.002, 2, 1)]

    def test_formulas_stand_beside_measured_costs(self):
        row = PaperRow("R", "m", formulas={"time": "O(N m)"})
        found = Reproduction(experiment((row,), (PaperColumn("a", "t"),)), "paper", (0,), ())
        table = cost_table(found)
        assert table.columns[-1].title == "time, the paper's formula"
        assert table.rows[0][-1] == "O(N m)"

    @pytest.mark.parametrize(
        ("form", "shown"), [("cost", ["table", "costs"]), ("table", ["table"])]
    )
    def test_a_table_of_costs_shows_what_was_measured(self, form, shown):
        of = experiment((PaperRow("R", "m"),), (PaperColumn("a", "t"),), form=form)
        found = Reproduction(of, "paper", (0,), (outcome("R", "a", 0, 1.0),))
        assert [table.name for table in result_tables(found)] == shown
        parts = [part for s in reproduction_page(found).shown() for part in s.parts]
        assert [getattr(part, "name", "") for part in parts].count("costs") == 1


MAP = experiment(
    (PaperRow("S", "source-only"), PaperRow("T", "target-only")),
    tuple(PaperColumn(f"{x}, {y}", "t", x=x, y=y) for x in (0.1, 0.5) for y in (10, 20)),
    form="map",
    panels=(
        Panel("(a)", "errors", "delta-error", ("S", "T")),
        Panel("(b)", "tests", "score", ("S", "T")),
    ),
    x="distance",
    y="samples",
)


def map_of(scores, deltas):
    runs = [
        outcome(row, column.key, 0, None, score=value)
        for row, values in scores.items()
        for column, value in zip(MAP.columns, values, strict=True)
    ]
    errors = {
        (row, column.key): (value,)
        for row, values in deltas.items()
        for column, value in zip(MAP.columns, values, strict=True)
    }
    return Reproduction(MAP, "paper", (0,), tuple(runs), deltas=errors)


class TestFigures:
    found = map_of(
        {"S": [-1.0, -1.0, -3.0, -3.0], "T": [-2.0, -0.5, -2.0, -0.5]},
        {"S": [1.0, 1.0, 9.0, 9.0], "T": [5.0, 0.5, 5.0, 0.5]},
    )

    def test_the_smallest_delta_error_and_the_best_test_win_a_cell(self):
        won = [[self.found.winner(panel, c) for c in MAP.columns] for panel in MAP.panels]
        assert won == [["S", "T", "T", "T"]] * 2

    def test_a_map_has_a_chart_and_a_table_per_panel(self):
        charts = figure(self.found)
        assert [chart.title for chart in charts] == ["(a) errors", "(b) tests"]
        assert charts[0].data["values"]["won"] == ["S", "T", "T", "T"]
        table = result_tables(self.found)[0]
        assert table.rows == (("20", "T", "T"), ("10", "S", "T")), "samples from the top down"

    def test_a_curve_is_labelled_at_its_places_as_they_are(self):
        places = [PaperColumn(f"{x:g}", x=x, task="digits-noise") for x in (0.05, 0.1, 0.15)]
        row = PaperRow("FedDA", "fedda", paper=(1.0, 2.0, 3.0))
        found = Reproduction(experiment([row], places), "paper", (0,), (), {})
        svg = figure_sheet(figure(found))
        assert all(f">{x}</text>" in svg for x in ("0.05", "0.1", "0.15"))

    def test_the_panels_are_one_drawing_whose_parts_have_names_of_their_own(self):
        svg = figure_sheet(figure(self.found))
        assert all(words in svg for words in ("(a) errors", "(b) tests", "distance", "samples"))
        names = re.findall(r'\bid="([^"]+)"', svg)
        assert len(names) == len(set(names))
        left = [int(x) for x in re.findall(r'<svg x="(\d+)" y="0"', svg)]
        assert left[0] == 0 < left[1], "side by side"

    def test_a_cell_without_all_results_has_no_winner(self):
        found = map_of({"S": [-1.0] * 4}, {})
        assert found.winner(MAP.panels[1], MAP.columns[0]) is None
        assert figure(found) == []

    def test_curves_have_ours_and_the_papers_over_x(self):
        columns = (PaperColumn("0.4", "t", x=0.4), PaperColumn("0.2", "t", x=0.2))
        row = PaperRow("R", "m", paper=(1.0, 2.0))
        runs = (outcome("R", "0.4", 0, 3.0), outcome("R", "0.2", 0, 4.0))
        of = experiment((row,), columns, form="curves", x="noise")
        ours, paper = figure(Reproduction(of, "paper", (0,), runs))
        assert ours.data["values"]["x"] == [0.2, 0.4]
        assert ours.data["values"]["y"] == [4, 3]
        assert paper.data["values"]["y"] == [2, 1]

    def test_weights_have_a_panel_per_target_and_a_line_per_source(self):
        columns = (PaperColumn("V", "t"), PaperColumn("L", "t"))
        of = experiment((PaperRow("R", "m"),), columns, form="betas", score="beta")
        names = {"sources": ["A", "B"]}
        runs = [
            outcome("R", "V", 0, 1.0, beta=[[0.1, 0.5], [0.3, 0.5]], **names),
            outcome("R", "V", 1, 1.0, beta=[[0.3, 0.7], [0.5, 0.9]], **names),
            outcome("R", "L", 0, 1.0, beta=[[0.2, 0.4]], **names),
        ]
        first, second = figure(Reproduction(of, "paper", (0, 1), tuple(runs)))
        assert (first.title, second.title) == ("target V", "target L")
        assert first.data["values"]["s"] == ["A", "A", "B", "B"]
        assert first.data["values"]["y"] == pytest.approx([0.2, 0.4, 0.6, 0.7])
        assert second.data["values"]["y"] == [0.2] * 3 + [0.4] * 3, "kept once, true in 3 rounds"

    def test_a_table_shows_how_far_each_row_is_from_the_paper(self):
        chart = figure(TWO)[-1]
        assert chart.data["values"]["name"] == ["R"]
        assert chart.data["values"]["mean"] == [3.5]


class TestPlan:
    def plan(self, text=SMALL, protocol="paper", seeds=None, rounds=None, **more):
        return ReproductionPlan.of(
            read("small", text), protocol, seeds, rounds, **({"quick": False} | more)
        )

    def run(self, plan, row=0, column=0):
        return plan.planned(plan.experiment.rows[row], plan.experiment.columns[column], 0)

    def test_what_the_protocol_says_is_part_of_the_key(self):
        paper = self.run(self.plan()).spec()
        fair = self.run(self.plan(protocol="fair")).spec()
        assert paper.options == {
            **run_options("paper", "digits-noise", None, "fedda"),
            "beta": 0.25,
            "steps": 1,
        }
        assert paper.options["align"] is False
        assert paper.task_options["protocol"] == "paper"
        assert fair.options == {"beta": 0.25, "steps": 1}
        assert paper.key != fair.key

    def test_options_of_a_column_go_to_methods_that_have_them_after_their_own(self):
        text = SMALL.replace("x = 0.2,", "x = 0.2, run = { beta = 0.9, lr = 0.3, penalty = 2 },")
        assert self.run(self.plan(text)).options == {"beta": 0.25, "lr": 0.3, "steps": 1}

    def test_rounds_and_seeds_are_the_papers_unless_said(self):
        text = SMALL.replace('method = "fedda"', 'method = "fedda"\nrounds = 7')
        assert self.run(self.plan(text)).rounds == 7
        assert self.run(self.plan(text, rounds=3)).rounds == 3
        assert self.plan(seeds=3).seeds == (0, 1, 2)
        assert self.plan(seeds=[4, 9]).seeds == (4, 9)
        assert self.plan().seeds == (0,)

    def test_a_fair_round_may_count_otherwise(self):
        text = SMALL.replace("rounds = 2\n", "rounds = 300\nrounds_fair = 50\n", 1)
        assert self.run(self.plan(text)).rounds == 300
        assert self.run(self.plan(text, "fair")).rounds == 50

    def test_the_quick_form_is_the_files(self):
        plan = self.plan(quick=True)
        assert [column.key for column in plan.experiment.columns] == ["0.4"]
        assert plan.experiment.rounds == 1

    def test_only_some_columns(self):
        whole = read("small", SMALL)
        part = only_columns(whole, ["0.2"])
        assert [column.key for column in part.columns] == ["0.2"]
        assert part.rows[0].paper == (50.0,)
        assert part.in_quick_form().columns == part.columns
        assert [column.key for column in only_columns(whole, ["0*"]).columns][-1] == "Avg"
        with pytest.raises(OptionError, match=r"fits none of: 0\.2, 0\.4\."):
            only_columns(whole, ["CIFAR*"])
        with pytest.raises(OptionError, match=r"CIFAR\* fits none of"):
            only_columns(whole, ["0.2", "CIFAR*"])  # one that is used excuses no other

    def test_some_rows_are_asked_for_by_patterns(self):
        whole = load_experiment("rbf-map")
        part = only_rows(whole, ["FedGP", "FedDA", "*Only"])
        assert [row.label for row in part.rows] == ["Source Only", "Target Only", "FedDA", "FedGP"]
        assert [panel.label for panel in part.panels] == ["(a)", "(b)"]
        assert only_rows(load_experiment("cost"), ["FedGP*"]).quick.rows == ("FedGP", "FedGP_Auto")
        with pytest.raises(OptionError, match="`rows` of rbf-map, but Ditto fits none of: Source"):
            only_rows(whole, ["Ditto"])
        with pytest.raises(OptionError, match=r"all `rows` of one map of rbf-map .*but got FedGP:"):
            only_rows(whole, ["FedGP"])

    def test_its_command_names_the_part(self, file, tmp_path):
        path = file()
        found = reproduce(path, out=tmp_path / "r", columns=["0*"], rows=["Fed*"], finished=True)
        asked = (
            f"fedbridge reproduce {path} --columns '0*' --rows 'Fed*' --protocol paper --seeds 0,"
        )
        assert command(found) == asked

    def test_its_command_can_be_typed_where_a_setting_begins_with_a_minus(self, tmp_path):
        found = reproduce("colored-mnist", out=tmp_path / "r", columns=["-90%"], finished=True)
        words = shlex.split(command(found))
        assert build_parser().parse_args(words[1:]).columns == ["-90%"]

    def test_a_control_that_is_not_there_is_added(self):
        small = PaperRow("Small steps", "target-only", {"lr": 0.1})
        part, controls = with_controls(experiment((PaperRow("R", "fedda-auto"), small)))
        assert {row.label for row in part.rows} >= set(controls.values()) == {"Target Only"}


def alone_of(experiment):
    """The row of the target alone."""
    return next(row for row in experiment.rows if row.method == "target-only")


class TestControls:
    def controls(self, *rows):
        whole = experiment(tuple(rows), (PaperColumn("a", "digits-noise"),))
        found, controls = with_controls(whole)
        return {row.label: (row.method, dict(row.options)) for row in found.rows}, controls

    def test_a_fixed_rule_has_the_target_alone_at_its_step(self):
        rows, controls = self.controls(
            PaperRow("FedGP_1", "fedgp", {"beta": 1}), PaperRow("FedDA_1", "fedda", {"beta": 1})
        )
        matched = controls["FedGP_1"]
        assert rows[matched] == ("target-only-matched", {"match": "fedgp", "beta": 1})
        assert controls["FedDA_1"] == matched, "their steps are the same"

    def test_of_a_part_of_a_table_they_are_those_of_the_whole(self):
        rows = [PaperRow(f"{rule}_1", rule.lower(), {"beta": 1}) for rule in ("FedDA", "FedGP")]
        auto = PaperRow("Auto", "fedgp-auto")
        own = PaperRow("The target", "target-only")
        every = (*rows, auto, own)
        _, controls = with_controls(experiment(every))
        for row in (*rows, auto):
            part, mine = with_controls(experiment((row,)), every)
            assert mine == {row.label: controls[row.label]}
            assert [r.label for r in part.rows] == [
                *(row.label, "The target", "Linear model alone"),
                *([] if row is auto else [controls[row.label]]),
            ]

    @pytest.mark.parametrize("part", [{"columns": ["0.4"]}, {"quick": True}])
    def test_one_that_was_not_asked_for_has_the_numbers_of_its_columns(self, tmp_path, part):
        asked = {"out": tmp_path / "r", "finished": True, "protocol": "fair"}
        whole = reproduce("fashion-noise", **asked).experiment
        found = reproduce("fashion-noise", rows=["FedGP_1"], **asked, **part).experiment
        printed = dict(zip([c.key for c in whole.columns], alone_of(whole).paper, strict=True))
        mine = dict(zip([c.key for c in found.columns], alone_of(found).paper, strict=True))
        assert 0 < len(mine) < len(printed)
        assert mine == {key: printed[key] for key in mine}

    def test_other_steps_have_other_controls(self):
        _, controls = self.controls(
            PaperRow("FedGP_1", "fedgp", {"beta": 1}), PaperRow("FedGP", "fedgp", {"beta": 0.5})
        )
        assert controls["FedGP_1"] != controls["FedGP"]

    def test_what_does_not_change_the_step_does_not_change_the_control(self):
        _, controls = self.controls(
            PaperRow("FedGP", "fedgp", {"beta": 1}),
            PaperRow("all", "fedgp", {"beta": 1, "filter": False}),
        )
        assert controls["FedGP"] == controls["all"]

    def test_other_methods_have_the_target_alone(self):
        rows, controls = self.controls(PaperRow("Auto", "fedgp-auto"))
        assert controls == {"Auto": "Target Only"}
        assert rows["Target Only"] == ("target-only", {})
        assert rows["Linear model alone"] == ("alone-logistic", {})

    def test_settings_of_its_own_are_those_of_its_control(self):
        rows, controls = self.controls(PaperRow("Auto", "fedgp-auto", {"lr_factor": 0.1}))
        method, options = rows[controls["Auto"]]
        assert method == "target-only-matched"
        assert options == {"match": "fedgp-auto", "lr_factor": 0.1}

    def test_rows_of_the_paper_are_taken_for_controls(self):
        rows, controls = self.controls(PaperRow("Own", "target-only"), PaperRow("Ditto", "ditto"))
        assert controls == {"Ditto": "Own"}
        assert "Target Only" not in rows

    def test_bounds_and_cited_rows_have_none(self):
        _, controls = self.controls(PaperRow("Oracle", "oracle"), PaperRow("Cited", paper=(1.0,)))
        assert controls == {}


class TestData:
    def test_what_is_not_on_disk_is_named_with_the_way_to_get_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
        with pytest.raises(MissingDataError, match="heart is not there: run `fedbridge data fetch"):
            reproduce("fed-heart", out=tmp_path / "out")
        assert not (tmp_path / "out").exists(), "nothing has begun"

    def test_weights_are_data_too_unless_a_backbone_is_frozen(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
        deep = experiment((ROW,), (PaperColumn("a", "vlcs"),))
        assert needed_data(deep) == {"vlcs": False, "resnet18": False}
        frozen = PaperColumn("a", "vlcs", options={"backbone": "efficientnet-lite0"})
        assert needed_data(experiment((ROW,), (frozen,))) == {"vlcs": False}
        (tmp_path / "vlcs").mkdir()
        check_data(experiment((ROW,), (frozen,)))

    def test_generated_data_need_nothing(self):
        assert needed_data(MAP) == {}

    def test_an_unknown_name_suggests_the_nearest(self):
        with pytest.raises(UnknownNameError, match="fed-heart"):
            reproduce("fedheart")

    def test_a_file_that_is_not_there(self):
        with pytest.raises(DataError, match=r"Could not read the experiment in 'no\.toml'"):
            reproduce("no.toml")


class TestRunning:
    def test_every_cell_is_an_ordinary_run(self, file, tmp_path):
        found = reproduce(file(), out=tmp_path / "r" / "small", workers=1)
        assert found.failures == []
        options = {"beta": 0.25, "steps": 1, "workers": 1}
        task = fb.load_task("digits-noise", seed=0, noise=0.2, n_target=12, protocol="paper")
        alone = fb.run(task, "fedda", rounds=2, seed=0, **options)
        pair = found.pair(found.experiment.rows[0], 0)
        assert pair.ours == alone.accuracy
        assert pair.difference == alone.accuracy - 50.0

    def test_tables_that_share_runs_share_them(self, file, tmp_path, monkeypatch):
        first = reproduce(file(), out=tmp_path / "r" / "one", workers=1)
        monkeypatch.setattr(module.PlannedRun, "go", lambda *_, **__: pytest.fail("ran again"))
        again = reproduce(file(OTHER, "other"), out=tmp_path / "r" / "two", workers=1)
        assert (first.kept, again.kept) == (0, 2)
        assert again.scores("The same", "little") == first.scores("FedDA", "0.2")

    def test_it_goes_on_where_it_was_stopped(self, file, tmp_path):
        def stop(done, cells, name):
            if name == "0.4-FedDA-0":
                raise KeyboardInterrupt

        out = tmp_path / "r" / "small"
        with pytest.raises(KeyboardInterrupt):
            reproduce(file(), out=out, workers=1, progress=stop)
        kept = list((tmp_path / "r" / "cells").glob("*.json"))
        assert len(kept) == 1
        found = reproduce(file(), out=out, workers=1)
        assert (found.kept, len(found.finished)) == (1, 2)

    def test_processes_change_nothing(self, file, tmp_path):
        one = reproduce(file(), out=tmp_path / "a" / "small", workers=1)
        two = reproduce(file(), out=tmp_path / "b" / "small", workers=2)
        assert (two.kept, two.failures) == (0, [])
        for column in ("0.2", "0.4"):
            assert one.scores("FedDA", column) == two.scores("FedDA", column)

    def test_a_failed_run_is_named_and_tried_again(self, file, tmp_path, monkeypatch):
        whole = module.PlannedRun.go

        def fail(cell, *more, **options):
            if cell.setting.label == "0.4":
                raise RuntimeError("no luck")
            return whole(cell, *more, **options)

        monkeypatch.setattr(module.PlannedRun, "go", fail)
        out = tmp_path / "r" / "small"
        found = reproduce(file(), out=out, workers=1)
        (failure,) = found.failures
        assert (failure.column, failure.row, failure.seed) == ("0.4", "FedDA", 0)
        assert failure.error == "RuntimeError: no luck"
        assert found.notes()[-1] == "1 of 2 runs failed."
        monkeypatch.undo()
        again = reproduce(file(), out=out, workers=1)
        assert (again.kept, again.failures) == (1, [])

    def test_a_damaged_result_is_made_again(self, file, tmp_path):
        out = tmp_path / "r" / "small"
        reproduce(file(), out=out, workers=1, columns=["0.2"])
        (kept,) = (tmp_path / "r" / "cells").glob("*.json")
        kept.write_text(kept.read_text()[:40])
        assert reproduce(file(), out=out, workers=1, columns=["0.2"]).kept == 0

    def test_a_result_is_one_line_with_all_that_decides_it(self, file, tmp_path):
        made = reproduce(file(), out=tmp_path / "r" / "small", workers=1, columns=["0.2"])
        (kept,) = (tmp_path / "r" / "cells").glob("*.json")
        (line,) = kept.read_text().splitlines()
        record = json.loads(line)
        assert record["key"] == kept.stem
        assert record["version"] == fb.__version__
        assert record["spec"]["options"]["beta"] == 0.25
        assert len(record["summary"]["beta"]) == 1, "a fixed weight is kept once"
        wanted = {"accuracy", "score", "accuracy_last", "seconds", "bytes_up", "seconds_train"}
        assert wanted <= set(record["summary"])
        every = record["summary"]["accuracies"]
        assert mean(every) == pytest.approx(record["summary"]["accuracy"], abs=0.01)
        assert made.outcomes[0].to_json()["accuracies"] == every

    def test_a_file_of_results_stands_for_its_runs(self, file, tmp_path, monkeypatch):
        first = reproduce(file(), out=tmp_path / "r" / "small", workers=1, columns=["0.2"])
        write_results(first, tmp_path / "r" / "small")
        kept = tmp_path / "r" / "small" / "results.jsonl"
        lines = kept.read_text().splitlines()
        old = json.loads(lines[0])
        old["settings"]["seed"], old["accuracy"] = 1, 99.0  # its key is that of seed 0
        kept.write_text("\n".join([json.dumps(old), *lines, lines[0][:80]]))  # cut short
        monkeypatch.setattr(module.PlannedRun, "go", lambda *_, **__: pytest.fail("ran again"))
        again = reproduce(
            file(), out=tmp_path / "new" / "small", seeds=2, results=kept, finished=True
        )
        assert again.kept == 1
        assert again.scores("FedDA", "0.2") == first.scores("FedDA", "0.2")
        assert again.notes()[-1] == "3 of 4 runs are not done."
        assert (again.failures, len(again.finished), again.left_out) == ([], 1, 2)
        assert any(note.startswith("2 lines of the results given") for note in again.notes())
        write_results(again, tmp_path / "new" / "small")
        assert (tmp_path / "new" / "small" / "results.jsonl").read_text().splitlines() == lines

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ('{"key": 1}\n\n{', "none of its 2 lines is that of a run of this version"),
            ('{"key": 1}\n[2]', "none of its 2 lines is that of a run of this version"),
            ("", "none of its 0 runs is one"),
        ],
    )
    def test_results_that_cannot_be_read(self, file, tmp_path, text, complaint):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(DataError, match=complaint):
            reproduce(file(), out=tmp_path / "r" / "s", results=tmp_path / "bad")

    def test_several_files_of_results(self, file, tmp_path):
        kept = []
        for column in ("0.2", "0.4"):
            folder = tmp_path / column / "small"
            write_results(reproduce(file(), out=folder, workers=1, columns=[column]), folder)
            kept.append(folder / "results.jsonl")
        both = reproduce(file(), out=tmp_path / "new" / "small", results=kept, finished=True)
        assert both.scores("FedDA", "0.2")
        assert both.scores("FedDA", "0.4")

    def test_results_that_were_given_stay_when_they_are_not_given_again(self, file, tmp_path):
        first, out = tmp_path / "r" / "small", tmp_path / "new" / "small"
        done = reproduce(file(), out=first, workers=1, columns=["0.2"])
        write_results(done, first)
        given = reproduce(file(), out=out, results=first / "results.jsonl", finished=True)
        write_results(given, out)
        later = reproduce(file(), out=out, finished=True)
        write_results(later, out)
        assert later.scores("FedDA", "0.2") == done.scores("FedDA", "0.2")
        assert (out / "results.jsonl").read_text() == (first / "results.jsonl").read_text()

    def test_it_can_be_watched_while_it_runs_and_afterwards(self, file, tmp_path):
        out, seen = tmp_path / "r" / "small", []

        def watch(done, total, name):
            seen.append(look(out))

        reproduce(file(), out=out, workers=1, progress=watch)
        assert {(one.kind, one.state) for one in seen[:-1]} == {("reproduction", "running")}
        assert [(cell.setting, cell.method) for cell in seen[0].cells] == [
            ("0.2", "FedDA"),
            ("0.4", "FedDA"),
        ]
        over = look(out)
        assert (over.state, over.counts) == ("finished", {"done": 2})
        assert over.cells[0].score is not None
        (out / "plan.json").write_text("[{}]")
        with pytest.raises(WatchError, match="Could not read the plan"):
            look(out)

    def test_runs_that_were_given_count_as_done_for_who_watches(self, file, tmp_path):
        first, out = tmp_path / "r" / "small", tmp_path / "new" / "small"
        write_results(reproduce(file(), out=first, workers=1), first)
        reproduce(file(), out=out, workers=1, results=first / "results.jsonl")
        assert look(out).counts == {"done": 2}

    def test_own_results_of_another_version_are_no_obstacle(self, file, tmp_path):
        out = tmp_path / "r" / "small"
        out.mkdir(parents=True)
        (out / "results.jsonl").write_text('{"key": "none"}\n')
        assert len(reproduce(file(), out=out, workers=1, columns=["0.2"]).finished) == 1

    def test_results_of_something_else_are_refused(self, file, tmp_path):
        out = tmp_path / "r" / "small"
        write_results(reproduce(file(), out=out, workers=1, columns=["0.2"]), out)
        with pytest.raises(
            DataError, match="none of its 1 runs is one: name their protocol, seeds"
        ):
            reproduce(file(), "fair", out=out, results=out / "results.jsonl", finished=True)

    def test_the_number_of_workers_is_checked_before_anything_runs(self, file, tmp_path):
        with pytest.raises(OptionError, match="Expected `workers`"):
            reproduce(file(), out=tmp_path / "r" / "small", workers=0)

    @pytest.mark.parametrize(
        "change", [{"accuracy": "abc"}, {"rounds": None}, {"bytes_up": None}, {"beta": 3}]
    )
    def test_a_damaged_line_is_no_run(self, file, tmp_path, change):
        out = tmp_path / "r" / "small"
        write_results(reproduce(file(), out=out, workers=1, columns=["0.2"]), out)
        good = json.loads((out / "results.jsonl").read_text())
        assert summary_of(good) is not None
        damaged = {k: v for k, v in {**good, **change}.items() if v is not None}
        assert summary_of(damaged) is None

    def test_tasks_of_ones_own_are_refused(self, file, tmp_path):
        text = SMALL.replace('task = "digits-noise"', 'task = "mine.csv"')
        with pytest.raises(OptionError, match=r"built-in tasks.*'mine\.csv'"):
            reproduce(file(text), out=tmp_path / "r" / "s")

    def test_runs_on_images_go_on_within_a_run(self, file, tmp_path, monkeypatch):
        rooms = []
        whole = module.PlannedRun.go

        def go(cell, task, tell, out, **more):
            rooms.append(out)
            return whole(cell, task, tell, out, **more)

        monkeypatch.setattr(module.PlannedRun, "go", go)
        monkeypatch.setattr(module, "FLAT", 0)
        found = reproduce(file(), out=tmp_path / "r" / "small", workers=1, columns=["0.2"])
        assert rooms == [tmp_path / "r" / "cells" / found.outcomes[0].spec.key]
        assert not rooms[0].exists(), "nothing but its line is left"

    def test_fair_has_the_controls(self, file, tmp_path):
        found = reproduce(
            file(), "fair", out=tmp_path / "r" / "s", workers=1, rounds=1, columns=["0.2"]
        )
        assert found.failures == []
        assert [row.label for row in found.experiment.rows] == [
            *("FedDA", "Cited", "Target Only", "Linear model alone", "Target Only, steps of FedDA")
        ]
        gain, control = found.gain("FedDA", 0), "Target Only, steps of FedDA"
        own, other = (found.scores(row, "0.2")[0] for row in ("FedDA", control))
        assert gain.ours == own - other

    def test_all_files_are_written(self, file, tmp_path):
        out = tmp_path / "r" / "small"
        found = reproduce(file(), out=out, workers=1, seeds=1)
        page = write_results(found, out)
        names = {path.name for path in out.iterdir()}
        assert names == {
            *("report.html", "results.jsonl", "table.csv", "table.md", "table.tex", "figure.svg"),
            "plan.json",
        }
        assert "Digits with noise" in page.read_text()
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        assert [(line["row"], line["column"], line["seed"]) for line in lines] == [
            *(("FedDA", "0.2", 0), ("FedDA", "0.4", 0))
        ]
        assert lines[0]["settings"]["options"]["weights"] == "samples"
        written = (out / "table.md").read_text()
        assert written.startswith("Digits with noise: ours")
        assert "/ 50.0 /" in written
        assert r"\caption{Digits with noise: ours" in (out / "table.tex").read_text()
        assert lines[0]["version"] == fb.__version__
        assert (out / "figure.svg").read_text().count("<svg") == 1 + len(figure(found))
        assert "--protocol paper --seeds 0," in command(found)
        assert "Run it again" in [section.title for section in reproduction_page(found).shown()]


class TestDeltaErrors:
    """Against gradients of single points, taken one by one."""

    @pytest.fixture
    def task(self):
        whole = fb.load_task("rbf", seed=1, protocol="paper", n_target=20, diff=0.4)
        test = type(whole.test)(whole.test.name, whole.test.x[:40], whole.test.y[:40])
        return replace(whole, test=test)

    def single(self, task):
        from fedbridge.models.build import build_model
        from fedbridge.training.job import INITIALISING, seed_of

        torch.manual_seed(seed_of(1, 0, 0, INITIALISING))
        model = build_model(task.model, task).double()

        def gradient(x, y):
            loss = (model(x.double()) - y.double()).square().sum(1).mean()
            return torch.autograd.grad(loss, list(model.parameters()))

        x, y = (torch.cat([getattr(s, k) for s in (task.target, task.test)]) for k in "xy")
        rows = [gradient(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
        return rows, gradient(task.sources[0].x, task.sources[0].y)

    def test_they_are_the_mean_squared_error_of_the_rules_steps(self, task):
        rows, source = self.single(task)
        stacked = [torch.stack(parts).flatten(1) for parts in zip(*rows, strict=True)]
        truth = [part.mean(0) for part in stacked]
        source = [part.flatten() for part in source]
        moments = initial_moments(task, 1)
        spread = sum((p - t).square().sum(1).mean() for p, t in zip(stacked, truth, strict=True))
        assert moments["sigma2"] == pytest.approx(float(spread) / 20, rel=1e-4)
        beta, expected = 0.3, {"fedda": 0.0, "fedgp": 0.0}
        for part, target, theirs in zip(stacked, truth, source, strict=True):
            errors = (part - target) / math.sqrt(20)
            unit = theirs / theirs.norm()
            for name in expected:
                seen = target + errors  # the mean of 20 points, one draw per row
                other = theirs if name == "fedda" else (seen @ unit)[:, None] * unit
                step = (1 - beta) * seen + beta * other
                expected[name] += float((step - target).square().sum(1).mean())
        for name, error in expected.items():
            found = delta_error_of(name, {"beta": beta}, moments)
            assert found == pytest.approx(error, rel=1e-4)
        apart = sum(float((s - t).square().sum()) for s, t in zip(source, truth, strict=True))
        assert delta_error_of("source-only", {}, moments) == pytest.approx(apart, rel=1e-4)
        assert delta_error_of("target-only", {}, moments) == moments["sigma2"]

    def test_a_rule_without_a_formula_is_refused(self):
        with pytest.raises(OptionError, match="fedgp-auto"):
            delta_error_of("fedgp-auto", {}, {"sigma2": 1.0})

    def test_a_panel_of_them_is_made_with_the_runs_and_kept(self, file, tmp_path):
        text = """
title = "Who wins"
where = "nowhere"
form = "map"
score = "score"
rounds = 1
seeds = 1
x = "distance"
y = "samples"
quick = { rounds = 1, seeds = 1 }
panels = [{ label = "(a)", title = "errors", score = "delta-error", rows = ["S", "T"] }]
rows = [{ label = "S", method = "source-only" }, { label = "T", method = "target-only" }]

[grid]
task = "rbf"
x = { option = "diff", values = [0.4] }
y = { option = "n_target", values = [20] }
"""
        found = reproduce(file(text), out=tmp_path / "r" / "map", workers=1)
        assert found.failures == []
        assert found.deltas["T", "0.4, 20"][0] > found.deltas["S", "0.4, 20"][0] > 0
        assert found.winner(found.experiment.panels[0], found.experiment.columns[0]) == "S"
        again = reproduce(file(text), out=tmp_path / "r" / "map", workers=1)
        assert again.kept == 3
        write_results(again, tmp_path / "r" / "map")
        lines = tmp_path / "r" / "map" / "results.jsonl"
        moved = reproduce(file(text), out=tmp_path / "new" / "map", results=lines, finished=True)
        assert moved.kept == 3
        assert moved.deltas == again.deltas


@pytest.mark.parametrize(("form", "taken"), [("table", True), ("cost", False)])
def test_what_is_measured_takes_no_round_from_another_run(file, tmp_path, monkeypatch, form, taken):
    monkeypatch.setattr(source_rounds, "WORTH_IT", 0)
    got = []

    def get(rounds, key, really=SourceRounds.get):
        found = really(rounds, key)
        got.append(found is not None)
        return found

    monkeypatch.setattr(SourceRounds, "get", get)
    rows = [f'\n[[rows]]\nlabel = "{m}"\nmethod = "{m}"\n' for m in ("offset", "recalibrate")]
    text = SMALL.partition("[[rows]]")[0].replace('"table"', f'"{form}"') + "".join(rows)
    found = reproduce(file(text), columns=["0.4"], out=tmp_path / "r", workers=1)
    assert found.failures == []
    assert got
    assert any(got) == taken


@pytest.mark.parametrize("protocol", ["paper", "fair"])
@pytest.mark.parametrize("method", ["target-only", "target-only-matched"])
def test_the_target_alone_has_one_result_at_every_distance_of_the_map(protocol, method):
    """Which is why its row has ``regardless``, and so have its controls."""
    found = []
    for distance in (0.0, 0.56):
        task = fb.load_task("rbf", seed=1, diff=distance, n_target=27, protocol=protocol)
        found.append(fb.run(task, method=method, rounds=2, seed=1, workers=1).summary["score"])
    assert found[0] == found[1]


def test_a_row_that_a_setting_does_not_change_is_run_once():
    plan = ReproductionPlan.of(load_experiment("rbf-map"), "fair", [0], None, quick=False)
    runs = {
        row.label: {plan.planned(row, column, 0).spec().key for column in plan.experiment.columns}
        for row in plan.experiment.rows
    }
    alone = {label: len(keys) for label, keys in runs.items() if label.startswith("Target Only")}
    assert alone.keys() == {"Target Only", "Target Only, steps of FedDA"}
    assert set(alone.values()) == {9}
    assert len(runs["FedGP"]) == 81


def test_a_cache_that_holds_another_run_is_not_believed(tmp_path):
    cache = CellCache(tmp_path)
    spec, other = CellSpec("t", "m", 0, 1), CellSpec("t", "m", 1, 1)
    summary = dict.fromkeys(OF_RUNS, 1.0)
    cache.put(spec, summary)
    assert cache.get(spec.key) == summary
    cache.file(other.key).write_bytes(cache.file(spec.key).read_bytes())
    assert cache.get(other.key) is None
