"""The paper's tables and figures as data: complete, readable, and nothing in them that we lack."""

import itertools
import json
import math
from contextlib import nullcontext

import pytest

from fedbridge import methods
from fedbridge.base.errors import DataError, UnknownNameError
from fedbridge.base.values import canonical
from fedbridge.data.load import load_task, registry
from fedbridge.data.store.catalogue import CATALOGUE
from fedbridge.experiments.catalogue import FORMS, load, names, read
from fedbridge.federation.settings import split_options

ALL = [load(name) for name in names()]
EVERY = pytest.mark.parametrize("experiment", ALL, ids=names())
FORMS_OF_ALL = [form for whole in ALL for form in (whole, whole.in_quick_form())]

SMALL = """
title = "A small one"
where = "Table 1"
form = "table"
score = "accuracy"
rounds = 50
seeds = 5
columns = [
    { label = "a", group = "G", task = "t", options = { noise = 0.1 } },
    { label = "b", group = "G", task = "t", run = { beta = 1 } },
    { label = "Avg", group = "G", mean = true },
    { label = "c", task = "u" },
]

[quick]
rounds = 2
seeds = 1
columns = ["G: a", "c"]
tasks = { t = "smaller" }
options = { backbone = "x" }
run = { model = "mlp:8" }

[[rows]]
label = "FedGP"
method = "fedgp"
rounds = 150
paper = [1.0, 2.0, 1.5, nan]
spread = [0.1, 0.2, nan, nan]
also = [{ where = "Table 2", paper = { "G: b" = 2.5 } }]

[[rows]]
label = "FedDA"
method = "fedda"
"""


def decimals(value):
    text = repr(value)
    return 0 if text.endswith(".0") else len(text.partition(".")[2])


def agree(one, other):
    """Whether two printed numbers are the same, the one with more digits rounded."""
    return abs(one - other) <= 0.5 * 10.0 ** -max(1, min(map(decimals, (one, other)))) + 1e-9


def cells(experiment):
    """What is run in every cell with a number, the row, and the column's place."""
    for row, (place, column) in itertools.product(experiment.rows, enumerate(experiment.columns)):
        if row.method and not column.mean and not math.isnan(row.paper[place]):
            options = canonical(column.options), canonical({**row.options, **column.run})
            yield json.dumps([column.task, column.target, row.method, *options]), row, place


def test_every_table_and_figure_of_the_paper_has_a_file():
    sources = ("colored-mnist", "vlcs", "terra")
    figures = {f"betas-{name}-{rule}" for name in sources for rule in ("fedda", "fedgp")}
    betas = {f"beta-colored-mnist-{name}" for name in ("plus90", "plus80", "minus90")}
    assert set(names()) == figures | betas | {f"ssda-{name}" for name in sources} | {
        *("semi-synthetic", "real-data", "beta-figure", "beta-cifar", "filter", "rbf-map"),
        *("colored-mnist", "vlcs", "terra", "domainnet", "pacs", "office-home", "fashion-noise"),
        *("cifar-noise", "fashion-labels", "fashion-sources", "sample-sizes-fixed"),
        *("sample-sizes-auto", "fed-heart", "cost"),
    }
    assert {experiment.form for experiment in ALL} == set(FORMS)


def test_the_costs_are_those_of_every_method():
    assert {row.method for row in load("cost").rows} == set(methods.names())


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'fed-heart'"):
        load("fed-hart")


def test_places_in_the_paper_are_those_of_one_file_each():
    places = [experiment.where for experiment in ALL]
    assert len(set(places)) == len(places)
    tables = {f"Table {number}" for number in range(1, 21)}
    figures = {f"Figure {number}" for number in range(2, 12)}
    assert {place.partition(" (")[0].partition(",")[0] for place in places} >= tables | figures


def test_a_file_becomes_records_with_a_number_for_every_column():
    found = read("small", SMALL)
    first, second = found.rows
    assert [column.key for column in found.columns] == ["G: a", "G: b", "G: Avg", "c"]
    assert first.paper[:3] == (1.0, 2.0, 1.5)
    assert math.isnan(first.paper[3])
    assert [math.isnan(value) for value in first.also[0].paper] == [True, False, True, True]
    assert first.also[0].paper[1] == 2.5
    assert len(second.paper) == len(second.spread) == 4
    assert all(map(math.isnan, second.paper + second.spread))
    assert found.quick.rounds == 2


def test_the_quick_form_has_fewer_cells_and_their_numbers():
    found = read("small", SMALL).in_quick_form()
    assert [(column.key, column.task) for column in found.columns] == [
        ("G: a", "smaller"),
        ("c", "u"),
    ]
    assert found.columns[0].options == {"noise": 0.1, "backbone": "x"}
    assert found.columns[0].run == {"model": "mlp:8"}
    assert (found.rounds, found.seeds, found.rows[0].rounds) == (2, 1, None)
    assert found.rows[0].paper[0] == 1.0
    assert found.rows[0].spread[0] == 0.1
    assert [len(row.paper) for row in found.rows] == [2, 2]
    assert len(found.rows[0].also[0].paper) == 2


def test_a_mean_stays_where_all_of_its_columns_do():
    whole = SMALL.replace('columns = ["G: a", "c"]', 'columns = ["G: a", "G: b"]\nrows = ["FedDA"]')
    found = read("small", whole).in_quick_form()
    assert [column.key for column in found.columns] == ["G: a", "G: b", "G: Avg"]
    assert [row.label for row in found.rows] == ["FedDA"]


def test_a_round_that_is_six_steps_counts_as_six():
    whole = load("rbf-map")
    for form in (whole, whole.in_quick_form()):
        assert form.rounds == 6 * form.rounds_fair


def test_a_map_has_every_x_with_every_y():
    found = load("rbf-map")
    assert len(found.columns) == 81
    cell = found.columns[10]
    assert (cell.x, cell.y) == (0.07, 27)
    assert dict(cell.options) == {"diff": 0.07, "n_target": 27}
    assert cell.key == "0.07, 27"
    assert [panel.score for panel in found.panels] == ["delta-error", "score", "score"]


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("title =", "titel =", "Expected name, title, .* in small.toml, but got 'titel'. Did you"),
        ("rounds = 50", "", "Expected `rounds` in small.toml, but there is none"),
        ("rounds = 50", "rounds = 5.5", "a whole number as `rounds` of small.toml, but got 5.5"),
        ("rounds = 50", "rounds = true", "a whole number as `rounds` of small.toml, but got True"),
        ('form = "table"', 'form = "tabel"', "`form` in small.toml .* got 'tabel'. Did you"),
        ('score = "accuracy"', 'score = "f1"', "`score` in small.toml to be of accuracy, .* 'f1'"),
        ("paper = [1.0, 2.0, 1.5, nan]", "paper = [1.0]", "Expected 4 numbers, .*'FedGP'.* got 1"),
        ("paper = [1.0,", 'paper = ["1",', "a list, each a number, as `paper` of row 'FedGP'"),
        ('label = "FedDA"', 'label = "FedGP"', "every row of small.toml once, but 'FedGP'"),
        ('label = "c"', 'label = "G: a"', "every column of small.toml once, but 'G: a'"),
        (", mean = true", "", "either a task or `mean = true` in column 'G: Avg' .* neither"),
        ('task = "u"', 'task = "u", mean = true', "in column 'c' of small.toml, but it has both"),
        ('"G: a", "c"', '"G: z"', r"`columns` of \[quick\] in small.toml to be of G: a, .* 'G: z'"),
        ('{ t = "smaller" }', '{ s = "smaller" }', r"`tasks` of \[quick\] .* got 's'"),
        ('"G: b" = 2.5', '"b" = 2.5', r"a table of columns \(G: a, .* `also` of row 'FedGP'"),
        ("[quick]", "[slow]", r"Expected a table as \[quick\] of small.toml, but got None"),
        ("[[rows]]", "[rows]", "Expected 'small.toml' to be TOML"),
        ("columns = [\n", "columns = [3,\n", "a list of tables as `columns` of small.toml"),
    ],
)
def test_a_malformed_file_is_an_error_that_says_where(wrong, right, message):
    assert wrong in SMALL
    with pytest.raises(DataError, match=message):
        read("small", SMALL.replace(wrong, right))


@EVERY
def test_every_method_has_the_options_that_a_file_gives_it(experiment):
    for row in experiment.rows:
        if row.method is None:
            assert row.cited
            continue
        for column in experiment.columns:
            given = {**row.options, **column.run}
            split_options(given, row.method, methods.options_of(row.method), {})


@pytest.mark.parametrize("form", FORMS_OF_ALL, ids=lambda form: f"{form.name}-{form.rounds}")
def test_every_task_has_the_targets_and_options_that_a_file_gives_it(form, tmp_path, monkeypatch):
    """All of that is checked before the data are looked for, of which there are none."""
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
    for column in form.columns[:: 40 if form.form == "map" else 1]:  # its cells are all of a kind
        if column.mean:
            continue
        missing = pytest.raises(DataError, match="fedbridge data fetch")
        with nullcontext() if column.task == "rbf" else missing:
            load_task(column.task, column.target, protocol="paper", **column.options)
        domains = {name for data in CATALOGUE.values() for name in data.domains}
        known = domains | {f"source {number}" for number in range(1, 10)}
        assert set(column.options.get("sources", ())) <= known


@EVERY
def test_numbers_are_percentages_and_deviations(experiment):
    for row in experiment.rows:
        numbers = [row.paper, *(other.paper for other in row.also)]
        top = 100 if experiment.score == "accuracy" else 1
        assert all(math.isnan(value) or 0 <= value <= top for line in numbers for value in line)
        for value, spread in zip(row.paper, row.spread, strict=True):
            assert math.isnan(spread) or (0 <= spread < 10 and not math.isnan(value))


@EVERY
def test_averages_are_the_mean_of_their_columns_or_a_note_says_so(experiment):
    said = [note for note in experiment.notes if note.startswith("Averages that are not the mean")]
    wrong = 0
    for row, (place, mean) in itertools.product(experiment.rows, enumerate(experiment.columns)):
        if not mean.mean:
            continue
        of = [c.group == mean.group and not c.mean for c in experiment.columns]
        parts = [value for value, own in zip(row.paper, of, strict=True) if own]
        digits = max(map(decimals, (*parts, row.paper[place])))
        if abs(sum(parts) / len(parts) - row.paper[place]) > 10.0**-digits + 1e-9:
            wrong += 1
            assert f"{row.label} prints {row.paper[place]}" in said[0]
    assert bool(wrong) == bool(said)
    assert wrong == sum(note.count(" prints ") for note in said)


def test_where_two_places_of_the_paper_disagree_both_say_so():
    by_cell = {}
    for experiment in ALL:
        for cell, row, place in cells(experiment) if experiment.score == "accuracy" else ():
            by_cell.setdefault(cell, []).append((row, place))
    disagreements = 0
    for places in by_cell.values():
        for (row, place), (other, there) in itertools.permutations(places, 2):
            number = other.paper[there]
            if not agree(row.paper[place], number):
                disagreements += 1
                others = [also.paper[place] for also in row.also]
                assert any(agree(value, number) for value in others if value == value), row
    assert disagreements > 40


@EVERY
def test_a_file_has_what_its_form_shows(experiment):
    settings = [column for column in experiment.columns if not column.mean]
    if experiment.form in ("curves", "map"):
        assert experiment.x
        assert all(column.x is not None for column in settings)
    if experiment.form == "map":
        assert experiment.y
        assert all(column.y is not None for column in settings)
    assert bool(experiment.panels) == (experiment.form == "map")
    assert any(row.formulas for row in experiment.rows) == (experiment.form == "cost")
    assert all(column.task in registry.names() for column in settings)


@EVERY
def test_the_quick_form_is_a_small_part_of_the_whole(experiment):
    def work(form):
        settings = [column for column in form.columns if not column.mean]
        rounds = sum(row.rounds or form.rounds for row in form.rows if row.method)
        return len(settings) * rounds * form.seeds

    assert work(experiment.in_quick_form()) * 4 < work(experiment)
