"""A site that sees nothing but its own file gets the rows that it has when all files are there."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.base.errors import DataError, DisagreementError
from fedbridge.data.load import load_task
from fedbridge.data.split import OWN_SPLIT
from fedbridge.data.tables.load import describe_csv, load_csv_site
from fedbridge.data.tables.schema import Reading, Schema, agree

SITES = ("A", "B", "C")
TARGET = "C"


def write(folder: Path, tables: dict[str, pd.DataFrame]) -> Path:
    folder.mkdir(exist_ok=True)
    for site, table in tables.items():
        table.to_csv(folder / f"{site}.csv", index=False)
    return folder


def agreed(folder: Path, reading: Reading) -> Schema:
    described = {
        file.stem: describe_csv(file, file.stem, reading).summary
        for file in sorted(folder.glob("*.csv"))
    }
    return Schema.from_json(agree(described, reading)[0].to_json())


def patients(n: int = 20, **changes: object) -> pd.DataFrame:
    frame = {
        "age": [30 + k % 17 for k in range(n)],
        "sex": ["f", "m"] * (n // 2),
        "label": (["no", "yes", "yes"] * n)[:n],
    }
    return pd.DataFrame({**frame, **changes})


LABELS = {
    "words": (["no", "yes", "perhaps"], None),
    "whole numbers": (["10", "2", "1.0"], None),
    "values": (["0.5", "1.25", "-3"], None),
    "prices": (["200000.5", "350000", "120000"], None),
    "codes": (["0.5", "1.5"], "classification"),
    "asked values": (["1", "2", "3"], "regression"),
}


@st.composite
def federations(draw):
    """Tables of three sites with gaps, categories, unlabelled rows and any kind of label."""
    spellings, kind = LABELS[draw(st.sampled_from(sorted(LABELS)))]
    seed = draw(st.integers(0, 50))
    rng = np.random.default_rng(seed)

    def table(site: str) -> pd.DataFrame:
        n = draw(st.integers(12, 40))
        label = rng.choice(spellings, n)
        label[:4] = [*spellings[:2], *spellings[:2]]
        label = np.where((rng.random(n) < 0.1) & (np.arange(n) >= 4), "", label)
        empty = site == "A" and draw(st.booleans())
        return pd.DataFrame(
            {
                "age": np.where(
                    rng.random(n) < 0.2, "?", rng.normal(50, 9, n).round(1).astype(str)
                ),
                "dose": "" if empty else rng.integers(0, 9, n).astype(str),
                "sex": np.where(rng.random(n) < 0.2, "NA", rng.choice(["f", "m", "x"], n)),
                "ward": rng.integers(1, 4, n),
                "label": label,
            }
        )

    options = draw(st.sampled_from([{}, {"n_target": 5}, {"target_fraction": 0.5}]))
    return {site: table(site) for site in SITES}, kind, seed, options


@given(federations())
def test_rows_are_bit_for_bit_those_of_the_task_that_sees_all_files(tmp_path_factory, federation):
    tables, kind, seed, options = federation
    folder = write(tmp_path_factory.mktemp("sites"), tables)
    task = load_task(folder, TARGET, seed, categorical="ward", kind=kind, **options)
    schema = agreed(folder, Reading(categorical=("ward",), kind=kind))
    for expected in (*task.sources, task.target):
        role = "target" if expected.name == TARGET else "source"
        file = folder / f"{expected.name}.csv"
        site = load_csv_site(file, schema, expected.name, role, seed, replace(OWN_SPLIT, **options))
        assert site.train.x.equal(expected.x)
        assert site.train.y.equal(expected.y)
        assert (site.n_classes, site.class_names) == (task.n_classes, task.class_names)
        if role == "target":
            assert site.test.x.equal(task.test.x)
            assert site.test.y.equal(task.test.y)
            assert site.preprocessing == task.preprocessing


def test_a_description_holds_no_numbers_of_the_table(tmp_path):
    file = write(tmp_path, {"A": patients(age=[1234567.5] * 20)}) / "A.csv"
    described = describe_csv(file, "A", Reading())
    assert (described.rows, described.labelled) == (20, 20)
    assert described.summary.columns["sex"].levels == ("f", "m")
    assert described.summary.columns["age"].levels == ()
    assert describe_csv(file, "A", Reading("age", kind="regression")).summary.labels is None


def test_rare_categories_are_pointed_out_to_the_site(tmp_path):
    file = write(tmp_path, {"A": patients(sex=["f"] * 10 + ["m"] * 8 + ["x"] * 2)}) / "A.csv"
    cautions = describe_csv(file, "A", Reading()).cautions
    assert cautions == ("column 'sex': fewer than 5 rows each have 'x'",)


def test_names_and_free_text_are_refused_unless_they_are_meant(tmp_path):
    table = patients(name=[f"Jo Doe {k}" for k in range(20)])
    file = write(tmp_path, {"A": table}) / "A.csv"
    with pytest.raises(DataError, match=r"'name', but 20 of its 20 .* must not leave the site"):
        describe_csv(file, "A", Reading())
    describe_csv(file, "A", Reading(columns=("age",)))
    describe_csv(file, "A", Reading(categorical=("name",)))


def test_a_header_and_numbers_that_mean_two_things_are_refused_at_the_site(tmp_path):
    (tmp_path / "A.csv").write_text("age,label,label\n1,no,no\n2,yes,yes\n")
    with pytest.raises(DataError, match="'label' stands there more than once"):
        describe_csv(tmp_path / "A.csv", "A", Reading())
    file = write(tmp_path, {"A": patients(age=["1,5", "2,5"] * 10)}) / "A.csv"
    with pytest.raises(DataError, match=r"'1,5' .*write 1\.5"):
        describe_csv(file, "A", Reading())


def test_a_word_among_labels_that_are_numbers_is_refused_at_the_site(tmp_path):
    file = write(tmp_path, {"A": patients(label=["0.5"] * 19 + ["unknown"])}) / "A.csv"
    with pytest.raises(DisagreementError, match=r"'A' has text \('unknown'\) and numbers"):
        describe_csv(file, "A", Reading())


def test_disagreements_are_listed_in_the_words_of_one_machine(tmp_path):
    folder = write(tmp_path / "sites", {"A": patients(age=["old"] * 20), "C": patients()})
    with pytest.raises(DisagreementError) as here:
        load_task(folder, "C")
    with pytest.raises(DisagreementError) as apart:
        agreed(folder, Reading())
    assert str(apart.value) == str(here.value)


@pytest.fixture
def schema(tmp_path):
    return agreed(write(tmp_path / "both", {"A": patients(), "C": patients()}), Reading())


@pytest.mark.parametrize(
    ("table", "role", "message"),
    [
        (patients(sex="x"), "source", r"'sex' among 'f', 'm'.*'A' has 'x'.*agree again"),
        (patients(label="maybe"), "source", r"'label' among 'no', 'yes'.*'A' has 'maybe'"),
        (patients().drop(columns="age"), "source", r"'age' in the table of site 'A'"),
        (patients(sex=""), "source", r"'sex' at site 'A'.*`columns` at all sites"),
        (patients(age=""), "target", r"'age' at site 'A'.*`columns` at all sites"),
        (patients(age="old"), "source", r"numbers in column 'age', but row 2"),
        (patients(label="no"), "target", "at least two classes at the target 'A'"),
        (patients(label=""), "source", "'A' has nothing in column 'label'"),
        (patients()[:0], "source", "'A' has none below the header"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(tmp_path, schema, table, role, message):
    file = write(tmp_path, {"A": table}) / "A.csv"
    with pytest.raises(DataError, match=message):
        load_csv_site(file, schema, "A", role)


def test_whole_numbers_that_became_fractions_are_refused(tmp_path):
    folder = write(tmp_path / "both", {s: patients(label=[0, 1] * 10) for s in ("A", "C")})
    schema = agreed(folder, Reading())
    file = write(tmp_path, {"A": patients(label=[0, 1.5] * 10)}) / "A.csv"
    with pytest.raises(DataError, match=r"among '0', '1'.*'A' has 1\.5"):
        load_csv_site(file, schema, "A", "source")


NUMERIC = {"name": "c", "kind": "numeric"}
RECORD = {
    "format": 1,
    "label_column": "y",
    "label_form": "words",
    "class_names": ["no", "yes"],
    "columns": [NUMERIC],
}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"scale": {"size": 0.0}},
        {"scale": {"width": 1.0}},
        {"columns": None},
        {"columns": []},
        {"columns": [{"kind": "numeric"}]},
        {"columns": [NUMERIC | {"name": "y"}]},
        {"columns": [NUMERIC | {"kind": "picture"}]},
        {"columns": [NUMERIC | {"kind": "categorical"}]},
        {"columns": [NUMERIC | {"levels": ["f", "m"]}]},
        {"label_form": "odd"},
        {"label_form": "values"},
        {"class_names": None},
    ],
)
def test_a_damaged_schema_is_refused(change):
    Schema.from_json(json.dumps(RECORD))
    with pytest.raises(DataError, match="Expected a schema"):
        Schema.from_json(json.dumps(RECORD | change))


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(DataError, match="Expected a schema"):
        Schema.from_json(text)
