"""Imputation and scaling are learned from training rows, site by site or jointly."""

import pandas as pd
import pytest

from fedbridge.data.fitting import fit_preprocessing, imputation_notes
from fedbridge.data.preprocessing import CategoricalColumn, NumericColumn

SITES = {
    "A": pd.DataFrame({"age": ["10", "20", "60", ""], "sex": ["f", "f", "m", ""]}),
    "B": pd.DataFrame({"age": ["", ""], "sex": ["", ""]}),
    "C": pd.DataFrame({"age": ["5", "5"], "sex": ["m", "m"]}),
}
KINDS = {"age": "numeric", "sex": "categorical"}


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
