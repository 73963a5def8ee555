"""Sites must mean the same by a column; what they disagree on is listed site by site."""

import pandas as pd
import pytest

from fedbridge.base.errors import DataError, DisagreementError
from fedbridge.data.tables.cells import as_table
from fedbridge.data.tables.schema import (
    Reading,
    TableSummary,
    category_levels,
    column_kinds,
    common_columns,
    label_form,
    summarise,
)


def summaries(frames: dict[str, pd.DataFrame], **reading: object) -> dict[str, TableSummary]:
    return {
        site: summarise(as_table(frame.assign(label="x")), site, Reading(**reading))
        for site, frame in frames.items()
    }


def tables(coded: tuple[str, ...] = (), **cells: list[str]) -> dict[str, TableSummary]:
    frames = {site: pd.DataFrame({"c": values}) for site, values in cells.items()}
    return summaries(frames, categorical=coded)


def labels(**listed: tuple[str, ...] | None) -> dict[str, TableSummary]:
    return {site: TableSummary({}, own) for site, own in listed.items()}


def test_numbers_and_words_are_told_apart():
    frames = {"A": pd.DataFrame({"n": ["1", "", "2.5"], "w": ["x", "y", ""]})}
    assert column_kinds(summaries(frames), ["n", "w"], []) == {"n": "numeric", "w": "categorical"}


def test_a_column_empty_at_one_site_takes_the_kind_of_the_others():
    assert column_kinds(tables(A=["", ""], B=["1", "2"]), ["c"], []) == {"c": "numeric"}


def test_numbers_that_are_codes_can_be_declared():
    sites = tables(("c",), A=["1"], B=["x"])
    assert column_kinds(sites, ["c"], ["c"]) == {"c": "categorical"}


def test_numbers_here_and_words_there_are_a_disagreement():
    frames = tables(A=["1", "2"], B=["old", "young"], C=["", ""])
    with pytest.raises(DisagreementError) as caught:
        column_kinds(frames, ["c"], [])
    listed = "numbers at 'A' ('1', '2'), text at 'B' ('old', 'young'), no values at 'C'"
    assert listed in str(caught.value)


def test_all_disagreements_are_listed_at_once():
    frames = {
        "A": pd.DataFrame({"age": ["1"], "dose": ["2"], "sex": ["m"]}),
        "B": pd.DataFrame({"age": ["x"], "dose": ["y"], "sex": ["f"]}),
    }
    with pytest.raises(DisagreementError, match=r"(?s)'age'.*'dose'") as caught:
        column_kinds(summaries(frames), ["age", "dose", "sex"], [])
    assert "'sex'" not in str(caught.value)


def test_a_word_among_numbers_is_junk_not_a_disagreement():
    with pytest.raises(DataError, match=r"'c'.*row 4 at site 'B' has 'old'"):
        column_kinds(tables(A=["1", "2"], B=["1", "2", "old"]), ["c"], [])


def test_a_column_without_any_value_is_refused():
    with pytest.raises(DataError, match="'c', but it is empty at every site"):
        column_kinds(tables(A=[""], B=["", ""]), ["c"], [])


def test_levels_are_those_of_all_sites_and_gaps_are_noted():
    levels, notes = category_levels(tables(A=["x", ""], B=["y", "x"]), {"c": "categorical"}, [])
    assert levels == {"c": ("x", "y")}
    assert notes == ["column 'c': site 'A' has no 'y'"]


def test_levels_that_differ_in_case_are_noted():
    _, notes = category_levels(tables(A=["m", "M"], B=["m", "M"]), {"c": "categorical"}, [])
    assert notes == ["column 'c': 'M', 'm' differ only in case and count as different categories"]


def test_an_identifier_is_no_category_unless_declared():
    names = [f"patient {k}" for k in range(101)]
    frames = tables(A=names)
    with pytest.raises(DataError, match=r"'c', but it has 101 .*leave it out with `columns`"):
        category_levels(frames, {"c": "categorical"}, [])
    assert len(category_levels(frames, {"c": "categorical"}, ["c"])[0]["c"]) == 101


def test_columns_that_sites_lack_are_listed_site_by_site():
    frames = {
        "A": pd.DataFrame({"age": ["1"], "sex": ["f"]}),
        "B": pd.DataFrame({"age": ["1"], "dose": ["2"]}),
    }
    with pytest.raises(DisagreementError) as caught:
        common_columns(summaries(frames))
    for part in ("site 'A' lacks 'dose'", "site 'B' lacks 'sex'", "`columns`: age."):
        assert part in str(caught.value)


def test_the_order_of_columns_does_not_matter():
    frames = {
        "A": pd.DataFrame({"a": ["1"], "b": ["2"]}),
        "B": pd.DataFrame({"b": ["1"], "a": ["2"]}),
    }
    assert common_columns(summaries(frames)) == ["a", "b"]


@pytest.mark.parametrize(
    ("sites", "kind", "form"),
    [
        (labels(A=("no", "yes"), B=("no",)), None, "words"),
        (labels(A=("0", "1"), B=("2",)), None, "whole numbers"),
        (labels(A=("0", "1"), B=None), None, "values"),
        (labels(A=("0", "1"), B=("0.5",)), None, "values"),
        (labels(A=("0", "1"), B=("0.5",)), "classification", "words"),
        (labels(A=tuple(map(str, range(15))), B=tuple(map(str, range(10, 25)))), None, "values"),
        (labels(A=tuple(map(str, range(30)))), "classification", "whole numbers"),
        (labels(A=None, B=None), "regression", "values"),
    ],
)
def test_labels_of_all_sites_together_tell_what_they_are(sites, kind, form):
    assert label_form(sites, "y", kind) == form


def test_labels_that_are_words_here_and_numbers_there_are_listed():
    with pytest.raises(DisagreementError) as caught:
        label_form(labels(A=("no", "yes"), B=("0", "1"), C=None, D=("1", "old")), "y", None)
    for part in (
        "site 'A' has text ('no', 'yes')",
        "site 'B' has numbers ('0', '1')",
        "site 'C' has numbers\n",
        "site 'D' has text ('old') and numbers ('1')",
    ):
        assert part in str(caught.value)
