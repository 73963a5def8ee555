"""A new row is treated as the training rows were, also after a round trip through JSON."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from fedbridge.base import files
from fedbridge.base.errors import DataError
from fedbridge.data.tables.cells import as_table
from fedbridge.data.tables.preprocessing import (
    CategoricalColumn,
    NumericColumn,
    Preprocessing,
    fit_preprocessing,
    imputation_notes,
)

SAVED = Preprocessing(
    site="North",
    columns=(NumericColumn("age", 50.0, 40.0, 10.0), CategoricalColumn("sex", "f", ("f", "m"))),
    label_column="disease",
    class_names=("no", "yes"),
)

SITES = {
    "A": as_table(pd.DataFrame({"age": ["10", "20", "60", ""], "sex": ["f", "f", "m", ""]})),
    "B": as_table(pd.DataFrame({"age": ["", ""], "sex": ["", ""]})),
    "C": as_table(pd.DataFrame({"age": ["5", "5"], "sex": ["m", "m"]})),
}
KINDS = {"age": "numeric", "sex": "categorical"}


def test_numbers_are_scaled_and_categories_coded():
    x = SAVED.apply(pd.DataFrame({"sex": ["m", "f"], "age": [40, 55], "more": [0, 0]}))
    assert x.tolist() == [[0.0, 0.0, 1.0], [1.5, 1.0, 0.0]]


def test_missing_values_are_imputed():
    x = SAVED.apply(pd.DataFrame({"sex": [None, "?"], "age": [np.nan, 30]}))
    assert x.tolist() == [[1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]]


def test_a_csv_is_read_as_the_same_table(tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("age,sex\n40,m\n,f\n")
    expected = SAVED.apply(pd.DataFrame({"age": [40, None], "sex": ["m", "f"]}))
    assert SAVED.apply(file).tolist() == SAVED.apply(str(file)).tolist() == expected.tolist()


def test_a_category_that_training_never_saw_is_all_zeros_with_a_warning():
    with pytest.warns(UserWarning, match=r"'sex'.*never saw.*'x'"):
        x = SAVED.apply(pd.DataFrame({"sex": ["x"], "age": [40]}))
    assert x.tolist() == [[0.0, 0.0, 0.0]]


def test_codes_are_the_same_as_numbers_and_as_text():
    coded = Preprocessing("N", (CategoricalColumn("c", "1", ("1", "2")),), "y", None)
    for cells in ([1, 2], [1.0, 2.0], ["1", "2"], ["1.0", " 2"]):
        assert coded.apply(pd.DataFrame({"c": cells})).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sex": ["m"]}, r"'age' in the table.*It has: 'sex'"),
        ({"sex": ["m"], "age": ["old"]}, r"'age', but row 2 has 'old'"),
        ({"sex": [], "age": []}, "rows below the header"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table, message):
    with pytest.raises(DataError, match=message):
        SAVED.apply(pd.DataFrame(table))


def test_rows_that_would_fill_the_memory_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(files, "machine_memory", lambda: 100.0)
    frame = pd.DataFrame({"sex": ["m"] * 10, "age": [40] * 10})
    with pytest.raises(DataError, match="the encoded rows of site 'North' would take"):
        SAVED.apply(frame)
    assert len(SAVED.apply(frame[:3])) == 3


def test_json_brings_back_the_same_preprocessing():
    assert Preprocessing.from_json(SAVED.to_json()) == SAVED
    regression = Preprocessing("N", SAVED.columns, "y", None)
    assert Preprocessing.from_json(regression.to_json()) == regression
    assert json.loads(SAVED.to_json())["format"] == 1


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(SAVED.to_json()), **changes})


@pytest.mark.parametrize("version", [3, 0, "1", None])
def test_another_format_is_refused_by_number(version):
    with pytest.raises(DataError, match="format 2, but got"):
        Preprocessing.from_json(changed(format=version))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"columns": []}'])
def test_what_is_no_preprocessing_is_refused(text):
    with pytest.raises(DataError, match="something else"):
        Preprocessing.from_json(text)


@pytest.mark.parametrize(
    "columns",
    [
        None,
        [{}],
        ["age"],
        [{"name": "a", "fill": 0, "mean": 0}],
        [{"name": "a", "fill": 0, "mean": "0", "scale": 1}],
        [{"name": "a", "fill": 0, "mean": 0, "scale": 0}],
        [{"name": "a", "fill": float("nan"), "mean": 0, "scale": 1}],
        [{"name": "a", "fill": "x", "levels": "xy"}],
    ],
)
def test_damaged_preprocessing_is_refused(columns):
    with pytest.raises(DataError, match="damaged"):
        Preprocessing.from_json(changed(columns=columns))


def test_known_categories_raise_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SAVED.apply(pd.DataFrame({"sex": ["m", ""], "age": [1, 2]}))


def fit(standardise: str = "site", sites=SITES):
    return fit_preprocessing(
        sites,
        KINDS,
        {"sex": ("f", "m")},
        standardise=standardise,
        label_column="y",
        class_names=None,
    )


def test_missing_values_become_the_sites_median_and_most_frequent_value():
    age, sex = fit()["A"].columns
    assert age.fill == 20
    assert sex == CategoricalColumn("sex", "f", ("f", "m"))


def test_numbers_are_scaled_by_the_sites_own_rows():
    x = fit()["A"].apply(SITES["A"])[:, 0]
    assert x.mean().item() == pytest.approx(0, abs=1e-6)
    assert x.std(correction=0).item() == pytest.approx(1)


def test_joint_scaling_is_one_for_all_sites():
    fitted = fit("joint", {site: SITES[site] for site in ("A", "C")})
    ages = [own.columns[0] for own in fitted.values()]
    assert ages[0].mean == ages[1].mean == pytest.approx((10 + 20 + 60 + 20 + 5 + 5) / 6)
    assert ages[0].scale == ages[1].scale
    assert ages[0].fill != ages[1].fill


def test_a_constant_column_is_centred_only():
    assert fit()["C"].columns[0] == NumericColumn("age", fill=5.0, mean=5.0, scale=1.0)


@pytest.mark.parametrize("standardise", ["site", "joint"])
def test_a_column_empty_at_a_site_is_filled_from_the_others(standardise):
    age, sex = fit(standardise)["B"].columns
    assert age.fill == 20
    assert age.scale > 1
    assert sex.fill == "m"
    if standardise == "site":
        assert fit()["B"].apply(SITES["B"])[:, 0].tolist() == [0, 0]


def test_what_was_imputed_is_said_site_by_site():
    assert imputation_notes(SITES, fit()) == [
        (
            "site 'A': missing training values imputed: 1 of 'age' with its training median 20, "
            "1 of 'sex' with its most frequent training value 'f'"
        ),
        (
            "site 'B': missing training values imputed: 2 of 'age' with other sites' value 20, "
            "2 of 'sex' with other sites' value 'm'"
        ),
    ]
