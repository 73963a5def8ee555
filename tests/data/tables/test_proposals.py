"""What sites may mean is proposed from what is known anyway, as lines to paste, never applied."""

import tomllib

import pytest

from fedbridge.data.tables.proposals import name_likeness, propose, propose_names, setting
from fedbridge.data.tables.schema import ColumnSummary, Reading, TableSummary


def number(low=None, high=None):
    return ColumnSummary("numeric", span=None if low is None else (low, high))


def words(*levels):
    return ColumnSummary("categorical", levels)


def lines(sites, reference=None, **reading):
    summaries = {name: TableSummary(columns, labels) for name, (columns, labels) in sites.items()}
    found = propose(summaries, Reading(**reading), reference)
    return {site: [p.line for p in found if p.site == site] for site in sites}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("AgeYears", "age"),
        ("age_at_admission", "age"),
        ("Cholesterol", "chol"),
        ("blood pressure", "BloodPressure"),
        ("trestbps", "trestbp"),
        ("SEX", "sex"),
    ],
)
def test_names_that_mean_the_same(one, other):
    assert name_likeness(one, other) == name_likeness(other, one) >= 0.75


@pytest.mark.parametrize(
    ("one", "other"), [("age", "sex"), ("id", "identifier"), ("height", "weight"), ("wage", "age")]
)
def test_names_that_do_not(one, other):
    assert name_likeness(one, other) < 0.9


def test_what_most_call_it_is_right_and_the_target_decides_between_equals():
    plain, other = ({"age": number()}, ("0", "1")), ({"AgeYears": number()}, ("0", "1"))
    proposed = lines({"A": plain, "B": plain, "T": other}, "T")
    assert proposed == {"A": [], "B": [], "T": ['rename.AgeYears = "age"']}
    assert lines({"A": plain, "T": other}, "T") == {"A": ['rename.age = "AgeYears"'], "T": []}
    planned = lines({"A": plain, "T": other}, "T", columns=("age",))
    assert planned == {"A": [], "T": ['rename.AgeYears = "age"']}


def test_values_tell_what_names_do_not():
    """The same categories under any name; numbers of the same range under a similar one."""
    plain = ({"sex": words("f", "m"), "weight": number(40, 120)}, None)
    other = ({"Gender": words("F", "M"), "weigth_": number(45, 110), "x": number(0, 1)}, None)
    proposed = lines({"A": plain, "B": plain, "C": other})
    assert proposed["C"] == [
        'rename.weigth_ = "weight"',
        'rename.Gender = "sex"',
        'recode.sex.F = "f"',
        'recode.sex.M = "m"',
    ]
    far = ({"sex": words("f", "m"), "heigth": number(140, 200)}, None)
    assert lines({"A": plain, "B": plain, "C": far})["C"] == [], "another range, another thing"


def test_numbers_of_one_range_under_any_name():
    plain = ({"age": number(18, 90), "chol": number(120, 400), "sex": number(0, 1)}, None)
    other = ({"Alter": number(20, 91), "Wert": number(110, 395), "w": number(0, 1)}, None)
    proposed = lines({"A": plain, "B": plain, "C": other})
    assert proposed["C"] == ['rename.Alter = "age"', 'rename.Wert = "chol"'], "codes all look alike"
    two = ({"x": number(18, 90), "y": number(18, 90), "chol": number(), "sex": number()}, None)
    assert lines({"A": plain, "B": plain, "C": two})["C"] == [], "either could be meant"


def test_words_that_mean_the_same():
    plain = ({"exang": words("no", "yes"), "sex": words("f", "m")}, ("0", "1"))
    other = ({"exang": words("J", "N"), "sex": words("female", "male")}, ("ja", "nein"))
    proposed = lines({"A": plain, "B": plain, "C": other})
    assert proposed["C"] == [
        'recode.exang.J = "yes"',
        'recode.exang.N = "no"',
        'recode.sex.female = "f"',
        'recode.sex.male = "m"',
        'label-map.ja = "1"',
        'label-map.nein = "0"',
    ]
    assert proposed["A"] == proposed["B"] == []


def test_what_could_be_two_things_is_not_proposed():
    plain = ({"cp": words("atypical", "asymptomatic")}, None)
    other = ({"cp": words("a", "typical")}, None)
    assert lines({"A": plain, "B": plain, "C": other})["C"] == []
    strange = ({"cp": words("atypical", "asymptomatic"), "zip": number()}, None)
    assert lines({"A": plain, "B": plain, "C": strange})["C"] == []


def test_a_site_alone_has_nothing_but_names():
    found = propose_names("A", ["AgeYears", "Geschlecht", "chol"], ["age", "sex", "chol"])
    assert [p.line for p in found] == ['rename.AgeYears = "age"']


@pytest.mark.parametrize("name", ["plain", "with space", 'quote"s', "dot.ted", "Größe"])
def test_a_line_is_toml(name):
    assert tomllib.loads(setting("rename", name, value=name)) == {"rename": {name: name}}
