"""A consortium's messy files become the tables that all mean, and new rows with them."""

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import tomli_w
from messy import SETTINGS, SOURCES, TARGET, agreed, as_spelled, write_agreed, write_messy

import fedbridge as fb
from fedbridge.base.errors import DataError, DisagreementError, OptionError
from fedbridge.data.load import load_task
from fedbridge.data.tables import cells
from fedbridge.data.tables.curation import Curation
from fedbridge.data.tables.load import describe_csv, load_csv_site
from fedbridge.data.tables.preprocessing import MissingColumn, NumericColumn, Preprocessing
from fedbridge.data.tables.schema import Reading, Schema, agree


def same_rows(one, other):
    sites = zip((*one.sources, one.target, one.test), (*other.sources, other.target, other.test))  # noqa: B905
    return all(a.x.equal(b.x) and a.y.equal(b.y) for a, b in sites)


@pytest.fixture
def messy(tmp_path):
    return write_messy(tmp_path / "messy")


@pytest.fixture
def plain(tmp_path):
    return load_task(write_agreed(tmp_path / "agreed"), TARGET, impute="chol")


class TestOneMachine:
    def test_messy_files_become_the_tables_that_all_mean(self, messy, plain):
        task = load_task(messy, TARGET, impute="chol", sites=SETTINGS)
        assert same_rows(task, plain)
        assert task.class_names == ("0", "1")

    def test_a_task_file_says_it_in_tables_of_its_sites(self, messy, plain, tmp_path):
        file = tmp_path / "task.toml"
        content = {"task": {"path": "messy", "target": TARGET, "impute": "chol"}, "sites": SETTINGS}
        file.write_text(tomli_w.dumps(content), encoding="utf-8")
        assert same_rows(load_task(file), plain)
        text = file.read_text(encoding="utf-8").replace("drop-columns", "drop_columns")
        file.write_text(text, encoding="utf-8")
        assert same_rows(load_task(file), plain), "hyphens are as good"

    def test_without_the_settings_the_error_names_what_would_do(self, tmp_path):
        folder = tmp_path / "sites"
        folder.mkdir()
        for site in ("A", "C", "T"):
            names = {"age": "AgeYears"} if site == "C" else {}
            agreed(site).rename(columns=names).to_csv(folder / f"{site}.csv", index=False)
        with pytest.raises(DisagreementError) as caught:
            load_task(folder, "T")
        assert "At 'C' 'AgeYears' looks like 'age'." in str(caught.value)
        assert "--rename AgeYears=age" in str(caught.value)
        assert load_task(folder, "T", rename="AgeYears=age").n_classes == 2

    @pytest.mark.parametrize(
        ("sites", "said"),
        [
            ({"Z": {}}, "`sites` to name sites of the task, but got 'Z'"),
            ({"B": {"renamed": {}}}, r"\[sites.B\], but there is no option 'renamed'.*'rename'"),
            ({"B": {"rename": {"Age": "age"}}}, "`rename` to name columns.*'AgeYears'"),
            ({"B": {"recode": {"sx": {"a": "b"}}}}, "`recode` to name columns"),
            ({"B": {"recode": "a=b"}}, "`recode` by column"),
            ({"B": {"recode": {"cp": {}}}}, "`recode` to name columns"),
            ({"A": {"recode": {"sex": {"x": "m"}}}}, "`recode` to name categories in column 'sex'"),
            ({"A": {"units": {"age": {"times": 2}}}}, "the unit of column 'age'.*'times'"),
            ({"A": {"units": {"age": 0}}}, "`factor` of a unit other than 0"),
            ({"A": {"units": {"age": {"factor": "x"}}}}, "`factor` to be a number"),
            (
                {"A": {"scales": {"age": 3}}},
                "`scales.age.deviation`, but got 3",
            ),
            ({"A": {"scales": {"age": {"mean": 1}}}}, "give both, in the unit"),
            ({"A": {"scales": {"age": {"mean": 1, "deviation": 0}}}}, "`deviation` to be.*above 0"),
            ({"A": {"scales": {"sex": {"mean": 1, "deviation": 1}}}}, "'sex' holds categories"),
            ({"A": {"scales": {"aeg": {"mean": 1, "deviation": 1}}}}, "`scales` to name.*'age'"),
            ({"B": {"delimiter": "||"}}, "`delimiter` to be the one character"),
            ({"B": {"encoding": "klingon"}}, "`encoding` to be one that Python knows"),
            ({"B": {"encoding": "undefined"}}, "`encoding` to be one that Python knows"),
            ({"B": 3}, "options of site 'B' by name"),
        ],
    )
    def test_what_means_nothing_is_refused(self, messy, sites, said):
        own = {
            site: {**SETTINGS.get(site, {}), **new} if isinstance(new, dict) else new
            for site, new in sites.items()
        }
        with pytest.raises(OptionError, match=said):
            load_task(messy, TARGET, impute="chol", sites={**SETTINGS, **own})

    def test_one_file_is_of_one_form_but_its_sites_may_differ(self, tmp_path):
        file = tmp_path / "all.csv"
        tables = [agreed(site).assign(site=site) for site in ("A", "B")]
        pd.concat(tables).to_csv(file, index=False)
        expected = load_task(file, "A")
        tables[1]["sex"] = tables[1]["sex"].map({"m": "male", "f": "female"})
        tables[1]["chol"] /= 40
        pd.concat(tables).to_csv(file, index=False)
        own = {"recode": {"sex": {"male": "m", "female": "f"}}, "units": {"chol": 40}}
        task = load_task(file, "A", sites={"B": own})
        assert task.target.x.equal(expected.target.x)
        np.testing.assert_allclose(task.sources[0].x, expected.sources[0].x, atol=1e-5)
        with pytest.raises(OptionError, match=r"`decimal` for all sites of 'all\.csv'"):
            load_task(file, "A", sites={"B": {"decimal": ","}})

    def test_what_is_said_of_all_counts_for_each_unless_it_says_otherwise(self, tmp_path):
        folder = tmp_path / "sites"
        folder.mkdir()
        for site, sep in (("A", "|"), ("B", "^")):
            agreed(site).rename(columns={"age": "Alter"}).to_csv(
                folder / f"{site}.csv", index=False, sep=sep
            )
        task = load_task(
            folder, "A", rename="Alter=age", delimiter="|", sites={"B": {"delimiter": "^"}}
        )
        assert next(column.name for column in task.preprocessing.columns) == "age"

    def test_units_count_where_numbers_are_scaled_together(self, tmp_path):
        folder = tmp_path / "sites"
        folder.mkdir()
        for site, factor in (("A", 1.0), ("B", 4.0)):
            table = agreed(site)
            table.assign(chol=table["chol"] / factor).to_csv(folder / f"{site}.csv", index=False)
        own = {"B": {"units": {"chol": {"factor": 4.0}}}}
        task = load_task(folder, "A", standardise="joint", sites=own)
        place = [c.name for c in task.preprocessing.columns].index("chol") + 1  # sex takes two
        column = task.preprocessing.columns[place - 1]
        there = task.sources[0].x[:, place] * column.scale + column.mean
        np.testing.assert_allclose(there, agreed("B")["chol"], rtol=1e-4)

    def test_with_known_scales_no_row_changes_what_another_becomes(self, tmp_path):
        folder = tmp_path / "sites"
        folder.mkdir()

        def inputs(ages, **options):
            agreed("A").to_csv(folder / "A.csv", index=False)
            agreed("B").assign(age=ages).to_csv(folder / "B.csv", index=False)
            task = load_task(folder, "A", **options)
            return task.sources[0].x[:, 0], task

        known = agreed("B")["age"].astype(float).to_list()
        others, last = [None, *known[1:]], [None, *known[1:-1], 1000.0]
        own = {"age": {"mean": 50.0, "deviation": 16.0}}
        (here, task), (there, _) = inputs(others, scales=own), inputs(last, scales=own)
        assert here[:-1].equal(there[:-1])
        assert here[0] == 0.0, "a gap stands at the mean"
        np.testing.assert_allclose(here[1:], (np.array(known[1:]) - 50) / 16, rtol=1e-5)
        assert any("but for those that have `scales`: 'age' at A" in note for note in task.notes)
        assert any("1 of 'age' with the mean of its scale 50" in note for note in task.notes)
        assert not inputs(others)[0][:-1].equal(inputs(last)[0][:-1])

    def test_a_run_remembers_it_and_new_rows_come_in_the_targets_own_spelling(
        self, messy, tmp_path
    ):
        file = tmp_path / "task.toml"
        content = {"task": {"path": "messy", "target": "B", "impute": "chol"}, "sites": SETTINGS}
        file.write_text(tomli_w.dumps(content), encoding="utf-8")
        fb.run(file, method="fedda", rounds=1, model="linear", out=tmp_path / "run")
        new, how = as_spelled("B", agreed("new").drop(columns="label"))
        new.to_csv(tmp_path / "new.csv", index=False, **how)
        found = fb.predict(tmp_path / "run", tmp_path / "new.csv")
        assert found["Fall"].tolist()[0] == "ß-0"
        saved = fb.load_run(tmp_path / "run")
        expected = saved.model(saved.preprocessing.apply(agreed("new"))).softmax(1).detach()
        np.testing.assert_allclose(found["probability_1"], expected[:, 1], rtol=1e-5)
        text = (tmp_path / "run" / "preprocessing.json").read_text(encoding="utf-8")
        assert json.loads(text)["format"] == 2, "an older version would read the cells otherwise"


def test_a_unit_that_leads_beyond_all_numbers_is_refused(tmp_path):
    agreed("A").assign(site=["A", "B"] * 20).to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(DataError, match="Expected numbers in column 'chol'"):
        load_task(tmp_path / "all.csv", "B", units={"chol": 1e300})


def test_a_number_that_means_missing_is_missing(tmp_path):
    table = agreed("A").assign(site=["A", "B"] * 20)
    table.loc[::2, "chol"] = 0.0
    table.to_csv(tmp_path / "all.csv", index=False)
    task = load_task(tmp_path / "all.csv", "B", recode={"chol": {"0": ""}}, impute="chol")
    assert any("20 of 'chol' with other sites' value" in note for note in task.notes)


class TestAtTheSite:
    def test_rows_are_those_of_one_machine(self, messy, plain):
        reading = Reading(impute=("chol",))
        own = {site: Curation.of(SETTINGS.get(site, {})) for site in (*SOURCES, TARGET)}
        described = {
            site: describe_csv(messy / f"{site}.csv", site, reading, own[site]) for site in own
        }
        assert described["T"].left_out == ("number",)
        schema = agree({site: table.summary for site, table in described.items()}, reading)[0]
        schema = Schema.from_json(schema.to_json())
        assert schema.imputed == ("chol",)
        for expected in (*plain.sources, plain.target):
            role = "target" if expected.name == TARGET else "source"
            file, name = messy / f"{expected.name}.csv", expected.name
            site = load_csv_site(file, schema, name, role, curation=own[name])
            assert site.train.x.equal(expected.x), name
        assert site.preprocessing.id_columns == ("number",)

    def test_a_category_that_a_file_no_longer_has_is_no_error_there(self, messy, plain, tmp_path):
        reading, own = Reading(), Curation.of({"recode": {"sex": {"female": "f"}}})
        schema = agree({"A": describe_csv(messy / "A.csv", "A", reading).summary}, reading)[0]
        load_csv_site(messy / "A.csv", schema, "A", "source", curation=own)
        with pytest.raises(OptionError, match="`recode` to name categories"):
            describe_csv(messy / "A.csv", "A", reading, own)


class TestMissingColumns:
    def test_without_the_option_it_is_an_error_that_names_it(self, tmp_path):
        with pytest.raises(DisagreementError, match=r"'D' lacks 'chol'(.|\n)*--impute NAME"):
            load_task(write_agreed(tmp_path / "agreed"), TARGET)

    def test_it_is_imputed_marked_and_said(self, plain):
        names = [(type(column).__name__, column.name) for column in plain.preprocessing.columns]
        place = names.index(("MissingColumn", "chol")) + 1  # sex takes two
        assert names[names.index(("NumericColumn", "chol")) + 1] == ("MissingColumn", "chol")
        sources = {site.name: site.x[:, place] for site in plain.sources}
        assert (sources["D"] == 1).all()
        assert (sources["A"] == 0).all()
        lacking = next(site.x for site in plain.sources if site.name == "D")
        assert lacking[:, place - 1].abs().max() < 1e-6, "the mean of those who have it"
        assert any("'chol' is missing at 'D'" in note for note in plain.notes)
        assert any("other sites' value" in note for note in plain.notes)

    @pytest.mark.parametrize("column", ["chol", "sex"])
    def test_a_target_without_it_predicts_without_it(self, tmp_path, column):
        folder = tmp_path / "sites"
        folder.mkdir()
        for site in ("A", "T"):
            gone = [column] if site == "T" else []
            agreed(site).drop(columns=gone).to_csv(folder / f"{site}.csv", index=False)
        task = load_task(folder, "T", impute=column)
        saved = Preprocessing.from_json(task.preprocessing.to_json())
        without = saved.apply(agreed("new").drop(columns=column))
        assert saved.apply(agreed("new")).equal(without), "it never learned what a value means"
        schema_of = {
            site: describe_csv(folder / f"{site}.csv", site, Reading(impute=(column,))).summary
            for site in ("A", "T")
        }
        schema = agree(schema_of, Reading(impute=(column,)))[0]
        site = load_csv_site(folder / "T.csv", schema, "T", "target")
        assert site.train.x.equal(task.target.x)
        assert site.preprocessing.apply(agreed("new")).equal(without)

    def test_cells_that_miss_are_marked_too(self, tmp_path):
        table = agreed("A")
        table.loc[3, "chol"] = np.nan
        table.assign(site=["A"] * 20 + ["T"] * 20).to_csv(tmp_path / "all.csv", index=False)
        task = load_task(tmp_path / "all.csv", "T", impute="chol")
        place = 4  # after age, sex (two) and chol
        assert task.sources[0].x[:, place].tolist() == [0.0] * 3 + [1.0] + [0.0] * 16

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"impute": "cholesterol"}, "`impute` to name columns that some site has.*'chol'"),
            ({"impute": "label"}, "`impute` to name columns to learn from"),
            ({"impute": "chol", "columns": "age"}, "name it in `columns`"),
        ],
    )
    def test_what_means_nothing_is_refused(self, tmp_path, options, said):
        with pytest.raises(OptionError, match=said):
            load_task(write_agreed(tmp_path / "agreed"), TARGET, **options)

    def test_an_agreement_of_another_kind_is_refused(self):
        schema = Schema("label", "words", ("a", "b"), {"age": "numeric"}, {}, ("age",))
        content = json.loads(schema.to_json())
        content["columns"][0]["missing"] = "guess"
        with pytest.raises(DataError, match="missing values of 'age' are 'guess'"):
            Schema.from_json(json.dumps(content))

    def test_saved_preprocessing_keeps_the_mark(self):
        columns = (NumericColumn("age", 1.0, 1.0, 2.0), MissingColumn("age"))
        saved = Preprocessing("A", columns, "label", ("a", "b"))
        assert Preprocessing.from_json(saved.to_json()) == saved
        assert json.loads(saved.to_json())["format"] == 2
        rows = saved.apply(pd.DataFrame({"age": [3.0, None]}))
        assert rows.tolist() == [[1.0, 0.0], [0.0, 1.0]]
        assert saved.apply(pd.DataFrame({"other": [1]})).tolist() == [[0.0, 1.0]]


class TestParquet:
    def test_what_is_missing_is_said_with_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setattr(cells, "find_spec", lambda _: None)
        (tmp_path / "all.parquet").write_bytes(b"PAR1")
        with pytest.raises(DataError, match=r'pip install "fedbridge\[parquet\]"'):
            load_task(tmp_path / "all.parquet", "A")

    @pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
    def test_tables_are_those_of_a_csv(self, tmp_path, plain):
        folder = tmp_path / "parquet"
        folder.mkdir()
        for site in (*SOURCES, TARGET):
            table = pd.read_csv(tmp_path / "agreed" / f"{site}.csv")
            if site == "A":
                table.to_csv(folder / "A.csv", index=False)
            else:
                table.to_parquet(folder / f"{site}.parquet")
        assert same_rows(load_task(folder, TARGET, impute="chol"), plain)
        found = plain.preprocessing.apply(folder / "T.parquet")
        assert found.equal(plain.preprocessing.apply(tmp_path / "agreed" / "T.csv"))

    @pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
    def test_what_is_no_parquet_is_refused(self, tmp_path):
        (tmp_path / "all.parquet").write_bytes(b"age,label\n1,2\n")
        with pytest.raises(DataError, match="to be a Parquet file"):
            load_task(tmp_path / "all.parquet", "A")


def test_another_encoding_is_named_as_such(tmp_path):
    file = tmp_path / "all.csv"
    agreed("A").assign(site=["A", "B"] * 20, sex="ß").to_csv(file, index=False, encoding="cp1252")
    with pytest.raises(DataError, match="say which with `encoding`, such as cp1252"):
        load_task(file, "A")
    task = load_task(file, "A", encoding="cp1252")
    assert replace(task.preprocessing.curation, ids=()) == Curation(encoding="cp1252")


def test_a_delimiter_that_nobody_guesses_is_named(tmp_path):
    file = tmp_path / "all.csv"
    agreed("A").assign(site=["A", "B"] * 20).to_csv(file, index=False, sep="|")
    with pytest.raises(DataError, match=r"such as `delimiter = '\|'`"):
        load_task(file, "A")
    assert load_task(file, "A", delimiter="|").n_classes == 2
