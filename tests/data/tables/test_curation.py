"""What a data manager says of tables instead of changing files."""

import numpy as np
import pandas as pd
import pytest

from fedbridge.base.errors import DataError, DisagreementError, OptionError
from fedbridge.data.load import load_task, possible_targets
from fedbridge.data.tables.curation import Curation, identifier_note, pairs_of
from fedbridge.data.tables.load import describe_csv
from fedbridge.data.tables.preprocessing import Preprocessing
from fedbridge.data.tables.schema import Reading

GENERATOR = np.random.default_rng(0)


def patients(**changes):
    """Three sites of 20 rows with decimal commas; the changes replace or add whole columns."""
    ages = GENERATOR.integers(200, 900, 60)
    frame = {
        "site": ["A"] * 20 + ["B"] * 20 + ["C"] * 20,
        "age": [f"{age // 10},{age % 10}" for age in ages],
        "sex": ["f", "m"] * 30,
        "label": ["ja", "nein"] * 30,
    }
    return pd.DataFrame({**frame, **changes})


def load(frame, tmp_path, **options):
    file = tmp_path / "patients.csv"
    frame.to_csv(file, index=False, sep=";")
    return load_task(file, **{"target": "C", "decimal": ",", **options})


def learned(task):
    return [column.name for column in task.preprocessing.columns]


class TestSites:
    def test_what_is_left_out_is_not_even_looked_at(self, tmp_path):
        label = ["ja", "nein"] * 10 + ["1", "0"] * 10 + ["ja", "nein"] * 10
        with pytest.raises(DisagreementError, match="exclude-sites"):
            load(patients(label=label), tmp_path)
        task = load(patients(label=label), tmp_path, exclude_sites="B")
        assert task.source_names == ("A",)
        assert "left out of the sources: 'B'" in task.notes
        assert load(patients(label=label), tmp_path, sources=["A"]).source_names == ("A",)

    def test_a_broken_file_of_a_folder_may_be_left_out(self, tmp_path):
        folder = tmp_path / "sites"
        folder.mkdir()
        for site, rows in patients().groupby("site"):
            rows.to_csv(folder / f"{site}.csv", index=False, sep=";")
        (folder / "B.csv").write_text("")
        with pytest.raises(DataError, match="its first line is empty"):
            load_task(folder, "C", decimal=",", site_column="site")
        task = load_task(folder, "C", decimal=",", site_column="site", exclude_sites=["b"])
        assert task.source_names == ("A",)
        assert possible_targets(folder, exclude_sites="B") == ("A", "C")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"exclude_sites": "C"}, "which is the target"),
            ({"exclude_sites": "A,B"}, "leaves none"),
            ({"exclude_sites": "D"}, "got 'D'.* Sources: 'A', 'B'"),
            ({"exclude_sites": 1.5}, "a list of names"),
            ({"sources": "A", "exclude_sites": "A"}, "leaves none"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, tmp_path, options, said):
        with pytest.raises(OptionError, match=said):
            load(patients(), tmp_path, **options)

    def test_a_built_in_task_takes_it_too(self):
        task = load_task("digits-noise", exclude_sites="source 1, source 3")
        assert task.source_names == ("source 2", "source 4")


class TestColumns:
    def test_dropped_and_renamed(self, tmp_path):
        task = load(patients(note="free text"), tmp_path, drop_columns="note", rename="age=years")
        assert learned(task) == ["years", "sex"]
        saved = Preprocessing.from_json(task.preprocessing.to_json())
        assert saved == task.preprocessing
        old = saved.apply(tmp_path / "patients.csv")
        new = saved.apply(patients().drop(columns="age").assign(years=patients().age))
        assert old.shape == new.shape == (60, 3)

    def test_sites_that_call_a_column_differently_agree_after_renaming(self, tmp_path):
        folder = tmp_path / "sites"
        folder.mkdir()
        for site, rows in patients().drop(columns="site").groupby(patients().site):
            named = rows.rename(columns={"age": "Alter"}) if site == "A" else rows
            named.to_csv(folder / f"{site}.csv", index=False, sep=";")
        with pytest.raises(DisagreementError, match="--rename Alter=age"):
            load_task(folder, "C", decimal=",")
        task = load_task(folder, "C", decimal=",", rename={"Alter": "age"})
        assert learned(task) == ["age", "sex"]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"drop_columns": "agee"}, "Did you mean 'age'"),
            ({"rename": "agee=years"}, "`rename` to name columns.*Did you mean 'age'"),
            ({"rename": "age=sex"}, "two columns 'sex'"),
            ({"rename": "age"}, "old=new"),
            ({"rename": "age=a,age=b"}, "one new name for 'age'"),
            ({"id_column": "pid"}, "`id_column` to name columns"),
            ({"drop_columns": "label"}, "'label' is the label"),
            ({"drop_columns": "sex", "columns": "sex"}, "'sex' is learned from"),
        ],
    )
    def test_what_means_nothing_is_refused(self, tmp_path, options, said):
        with pytest.raises(OptionError, match=said):
            load(patients(), tmp_path, **options)

    def test_pairs_in_all_their_forms(self):
        same = {"a": "1", "b": "2"}
        for given in ("a=1, b=2", ["a=1", "b=2"], {"a": 1, "b": 2}):
            assert pairs_of("label_map", given) == same

    def test_a_task_file_says_the_same(self, tmp_path):
        load(patients(Patient=range(60)), tmp_path)
        file = tmp_path / "task.toml"
        file.write_text(
            '[task]\npath = "patients.csv"\ntarget = "C"\ndecimal = ","\nid_column = "Patient"\n'
            'rename = { age = "years" }\nlabel_map = ["ja=1", "nein=0"]\nexclude_sites = ["A"]\n'
            'positive = "0"\n'
        )
        task = load_task(file)
        assert (learned(task), task.class_names) == (["years", "sex"], ("0", "1"))
        assert task.positive_name == "0"
        assert (task.source_names, task.preprocessing.id_columns) == (("B",), ("Patient",))


class TestLabels:
    MIXED = ["ja", "Nein"] * 10 + ["1", "0"] * 10 + ["Ja", "nein"] * 10

    def test_the_map_that_settles_it_is_named_and_works(self, tmp_path):
        with pytest.raises(DisagreementError) as caught:
            load(patients(label=self.MIXED), tmp_path)
        assert "--label-map ja=1,nein=0" in str(caught.value)
        task = load(patients(label=self.MIXED), tmp_path, label_map="ja=1,nein=0")
        assert task.class_names == ("0", "1")
        assert task.sources[0].y.tolist() == [1, 0] * 10

    def test_case_matters_where_it_is_typed(self, tmp_path):
        told = {"ja": "yes", "Ja": "perhaps", "1": "yes", "nein": "no", "0": "no"}
        task = load(patients(label=self.MIXED), tmp_path, label_map=told)
        assert task.class_names == ("no", "perhaps", "yes")
        assert (set(task.target.y.tolist()), task.sources[0].y.tolist()) == ({0, 1}, [2, 0] * 10)

    def test_labels_that_nobody_has_are_refused(self, tmp_path):
        with pytest.raises(OptionError, match=r"got 'jaa'.*Did you mean 'ja'.*'ja', 'nein'"):
            load(patients(), tmp_path, label_map="jaa=1")


class TestIdentifiers:
    @pytest.mark.parametrize(
        "numbers",
        [
            range(1, 61),
            [*range(1, 21)] * 3,
            GENERATOR.permutation(range(100, 160)),
            GENERATOR.choice(10**6, 60, replace=False),
            [f"{k},25" for k in range(60)],
        ],
        ids=["counted", "counted at each site", "shuffled", "drawn", "in order"],
    )
    def test_what_names_rows_is_left_out_and_named(self, tmp_path, numbers):
        task = load(patients(pid=list(numbers)), tmp_path)
        assert learned(task) == ["age", "sex"]
        assert task.preprocessing.id_columns == ("pid",)
        note = next(note for note in task.notes if "identifier" in note)
        assert "'pid'" in note
        assert "--keep-columns pid" in note
        kept = load(patients(pid=list(numbers)), tmp_path, keep_columns="pid")
        assert learned(kept) == ["age", "sex", "pid"]
        asked = load(patients(pid=list(numbers)), tmp_path, columns="age,pid")
        assert learned(asked) == ["age", "pid"]

    @pytest.mark.parametrize(
        "numbers",
        [
            [30 + k % 37 for k in range(60)],
            [f"{x:.3f}".replace(".", ",") for x in GENERATOR.normal(size=60)],
            [*range(59), ""],
        ],
        ids=["repeated", "measured", "missing"],
    )
    def test_measurements_stay(self, tmp_path, numbers):
        assert "pid" in learned(load(patients(pid=numbers), tmp_path))

    def test_few_rows_may_differ_by_accident(self, tmp_path):
        small = patients(pid=range(60)).iloc[[0, 1, 20, 21, *range(40, 45)]]
        assert "pid" in learned(load(small, tmp_path, test_fraction=0.4))

    def test_text_that_names_rows_is_said_to_be_one(self, tmp_path):
        frame = patients(pid=[f"P-{k:04}" for k in range(60)])
        with pytest.raises(DataError, match=r"--drop-columns pid, or with --id-column pid"):
            load(frame, tmp_path)
        assert learned(load(frame, tmp_path, id_column="pid")) == ["age", "sex"]


class TestPositive:
    def test_rows_and_classes_stay_as_they_are(self, tmp_path):
        frame = patients()
        plain = load(frame, tmp_path, n_target=6)
        task = load(frame, tmp_path, n_target=6, positive="ja")
        assert plain.class_names == task.class_names == ("ja", "nein")
        assert (plain.positive_name, task.positive_name) == ("nein", "ja")
        for before, after in zip(
            (*plain.sources, plain.target, plain.test, plain.target_pool),
            (*task.sources, task.target, task.test, task.target_pool),
            strict=True,
        ):
            assert (after.y == before.y).all()
            assert (after.x == before.x).all()
        assert task.preprocessing == plain.preprocessing
        assert task.manifest["options"]["positive"] == "ja"
        assert "positive class: 'ja'" in task.notes

    def test_the_second_class_is_positive_already(self, tmp_path):
        frame = patients()
        plain, task = load(frame, tmp_path), load(frame, tmp_path, positive="Nein")
        assert task.positive_name == plain.positive_name == "nein"

    @pytest.mark.parametrize(
        ("task", "said"),
        [("digits-noise", "10 classes"), ("rbf", "values to predict")],
    )
    def test_more_or_fewer_classes_have_none(self, task, said):
        with pytest.raises(OptionError, match=said):
            load_task(task, positive="1")

    def test_a_label_that_is_none_is_refused(self, tmp_path):
        with pytest.raises(OptionError, match=r"'ja', 'nein', but got 'yes'"):
            load(patients(), tmp_path, positive="yes")


def test_columns_that_are_not_there_name_the_option(tmp_path):
    with pytest.raises(DataError, match="--site-column NAME"):
        load(patients().rename(columns={"site": "clinic"}), tmp_path)
    with pytest.raises(DataError, match="--label-column NAME"):
        load(patients().rename(columns={"label": "sick"}), tmp_path)


def test_decimal_commas_are_named_as_one_types_them(tmp_path):
    with pytest.raises(DataError, match=r"on a command line: --decimal ,\)"):
        load(patients(), tmp_path, decimal=".")


@pytest.mark.parametrize("given", [5, None, [[1.0, 2.0]]])
def test_what_is_no_path_is_refused_in_our_words(given):
    with pytest.raises(OptionError, match="the name of a task"):
        load_task(given)


def test_a_site_leaves_identifiers_out_of_what_it_describes(tmp_path):
    file = tmp_path / "A.csv"
    patients(pid=range(60), age=30.5).drop(columns="site").to_csv(file, index=False)
    described = describe_csv(file, "A", Reading())
    assert (described.left_out, [*described.summary.columns]) == (("pid",), ["age", "sex"])
    told = describe_csv(file, "A", Reading(), Curation.of({"id-column": "pid"}))
    assert (told.left_out, told.summary) == ((), described.summary)
    for asked in (
        describe_csv(file, "A", Reading(columns=("age", "pid"))),
        describe_csv(file, "A", Reading(), Curation.of({"keep-columns": "pid"})),
    ):
        assert "pid" in asked.summary.columns


def test_the_index_that_pandas_writes_is_not_even_worth_a_note(tmp_path):
    file = tmp_path / "patients.csv"
    patients().reset_index(names="Unnamed: 0").to_csv(file, index=False, sep=";")
    task = load_task(file, "C", decimal=",")
    assert task.preprocessing.id_columns == ()
    assert not any("identifier" in note for note in task.notes)


def test_a_name_with_a_space_can_be_pasted_back():
    note = identifier_note(["Patient No", "row"])
    assert "--keep-columns 'Patient No' learns from it, --id-column 'Patient No' says" in note
