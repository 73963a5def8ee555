"""A user's tables: from a CSV with a site column, or one CSV per site, to a task."""

import json

import numpy as np
import pandas as pd
import pytest

from fedbridge.base.errors import DataError, DisagreementError, OptionError, UnknownNameError
from fedbridge.data.load import load_task
from fedbridge.data.tables.preprocessing import Preprocessing


def patients(**changes: object) -> pd.DataFrame:
    """Three sites of 20 rows; the changes replace whole columns."""
    n = 60
    frame = {
        "site": ["A"] * 20 + ["B"] * 20 + ["C"] * 20,
        "age": [30 + k % 37 for k in range(n)],
        "sex": ["f", "m"] * 30,
        "label": ["no", "yes", "yes"] * 20,
    }
    return pd.DataFrame({**frame, **changes})


def only(site: int, here: list[object], elsewhere: list[object]) -> list[object]:
    """Cells that repeat ``here`` at one site and ``elsewhere`` at the two others."""
    return [
        cells[k % len(cells)]
        for s in range(3)
        for k in range(20)
        for cells in [here if s == site else elsewhere]
    ]


@pytest.fixture
def load(tmp_path):
    def from_frame(frame: pd.DataFrame, **options: object):
        file = tmp_path / "patients.csv"
        frame.to_csv(file, index=False)
        return load_task(file, **{"target": "C", **options})

    return from_frame


def test_sites_labels_and_columns_come_from_the_table(load):
    task = load(patients())
    assert (task.name, task.source_names, task.target.name) == ("patients", ("A", "B"), "C")
    assert (task.class_names, task.n_classes) == (("no", "yes"), 2)
    assert task.input_shape == (3,)
    assert (len(task.sources[0]), len(task.target), len(task.test)) == (20, 14, 6)
    assert [column.name for column in task.preprocessing.columns] == ["age", "sex"]
    assert task.preprocessing.site == "C"


def test_the_path_may_be_text(load, tmp_path):
    load(patients())
    assert load_task(str(tmp_path / "patients.csv"), target="A").target.name == "A"


def test_the_manifest_holds_row_numbers_of_the_file(load):
    task = load(patients(), n_target=5, seed=3)
    manifest = json.loads(json.dumps(task.manifest))
    assert manifest["sources"]["B"] == list(range(20, 40))
    roles = [*manifest["target"], *manifest["unlabelled"], *manifest["test"]]
    assert sorted(roles) == list(range(40, 60))
    assert (manifest["origin"], manifest["seed"]) == ("patients.csv", 3)
    assert len(manifest["target"]) == 5


def test_site_label_and_feature_columns_may_have_any_name(load):
    frame = patients().rename(columns={"site": "clinic", "label": "outcome"})
    task = load(frame, site_column="clinic", label_column="outcome", columns="age")
    assert [column.name for column in task.preprocessing.columns] == ["age"]
    same = load(frame, site_column="clinic", label_column="outcome", columns=["age"])
    assert same.input_shape == (1,)


def test_the_index_that_pandas_writes_is_no_feature(load, tmp_path):
    patients().to_csv(tmp_path / "indexed.csv")
    task = load_task(tmp_path / "indexed.csv", target="C")
    assert "learned from: 'age', 'sex'" in task.notes


def test_a_column_named_twice_is_used_once(load):
    assert load(patients(), columns="age, age").input_shape == (1,)


def test_numbers_too_large_to_count_are_values(load):
    assert load(patients(label=[2**60, 2**61] * 30)).kind == "regression"


def test_numbers_are_standardised_per_site_on_its_training_rows(load):
    task = load(patients(age=only(0, [100, 200], [1, 2, 3])))
    for site in (*task.sources, task.target):
        assert site.x[:, 0].mean().item() == pytest.approx(0, abs=1e-6)
        assert site.x[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert any("standardised at each site" in note for note in task.notes)


def test_numbers_may_be_standardised_jointly(load):
    task = load(patients(age=only(0, [100, 200], [1, 2, 3])), standardise="joint")
    assert task.sources[0].x[:, 0].min() > task.target.x[:, 0].max()
    assert any("jointly" in note for note in task.notes)


def test_the_test_split_has_no_say_in_imputation_and_scaling(load):
    frame = patients()
    task = load(frame)
    for row in task.manifest["test"]:
        frame.loc[row, ["age", "sex"]] = [10_000, "m"]
    again = load(frame)
    assert again.manifest == task.manifest
    assert again.preprocessing == task.preprocessing


def test_missing_values_are_imputed_per_site_and_said(load):
    age = patients()["age"].astype(object)
    age[[3, 5, 21]] = [None, "?", ""]
    notes = " ".join(load(patients(age=age)).notes)
    assert "site 'A': missing training values imputed: 2 of 'age' with its training median" in notes
    assert "site 'B': missing training values imputed: 1 of 'age'" in notes


def test_a_category_that_one_site_lacks_is_a_note(load):
    task = load(patients(sex=only(1, ["f"], ["f", "m"])))
    assert task.input_shape == (3,)
    assert "column 'sex': site 'B' has no 'm'" in task.notes


def test_numbers_that_are_codes_become_categories(load):
    task = load(patients(ward=only(0, [1, 2], [2, 3])), categorical="ward")
    assert task.preprocessing.columns[-1].levels == ("1", "2", "3")


def test_rows_without_a_label_are_left_out_of_sources_and_unlabelled_at_the_target(load):
    label = patients()["label"].astype(object)
    label[[0, 41, 42]] = None
    task = load(patients(label=label))
    assert len(task.sources[0]) == 19
    assert len(task.unlabelled) == 2
    assert task.manifest["unlabelled"] == [41, 42]
    assert "site 'A': 1 rows without a label left out" in task.notes
    assert "site 'C': 2 rows without a label kept as unlabelled rows" in task.notes


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ([0, 1, 2], None, ("0", "1", "2")),
        ([1.0, 2.0, 10.0], None, ("1", "2", "10")),
        ([0.5, 1.5], None, None),
        (list(range(30)), None, None),
        ([0, 1, 2], "regression", None),
        (list(range(4)) * 5, "classification", ("0", "1", "2", "3")),
        ([0.5, 1.5], "classification", ("0.5", "1.5")),
    ],
)
def test_labels_tell_the_kind_of_task_unless_it_is_given(load, labels, kind, expected):
    task = load(patients(label=[labels[k % len(labels)] for k in range(60)]), kind=kind)
    assert task.class_names == expected
    assert task.kind == ("regression" if expected is None else "classification")


def test_classes_that_sites_do_not_share_are_noted(load):
    task = load(patients(label=only(2, ["no", "maybe"], ["no", "yes"])))
    assert "site 'A' has classes that the target has no labelled rows of: 'yes'" in task.notes
    assert "site 'A' has no rows of classes that the target has: 'maybe'" in task.notes


def test_the_saved_preprocessing_reproduces_the_targets_rows(load, tmp_path):
    task = load(patients())
    x = task.preprocessing.apply(tmp_path / "patients.csv")
    assert x[task.manifest["test"]].tolist() == task.test.x.tolist()


@pytest.mark.parametrize(
    ("frame", "options", "error", "message"),
    [
        (patients(), {"target": None}, OptionError, r"`target`.*one of 'A', 'B', 'C'"),
        (patients(), {"target": "D"}, UnknownNameError, r"'D'.*Sites: 'A', 'B', 'C'"),
        (patients(), {"site_column": "hospital"}, DataError, r"It has: 'site', 'age', 'sex', "),
        (patients(), {"label_column": "lable"}, DataError, "Did you mean 'label'"),
        (patients(), {"columns": "age,dose"}, DataError, r"'dose'.*It has: 'age', 'sex', 'label'"),
        (patients(), {"columns": "age,label"}, OptionError, "'label' is the label"),
        (patients(), {"categorical": ["sx"]}, OptionError, "Did you mean 'sex'"),
        (patients(), {"standardise": "each"}, OptionError, "site, joint"),
        (patients(), {"kind": "regresion"}, OptionError, "Did you mean 'regression'"),
        (patients(), {"kind": "regression"}, DataError, r"'label', but row 2 at site 'A' has 'no'"),
        (patients()[["site", "label"]], {}, DataError, "columns to learn from besides 'label'"),
        (patients()[:0], {}, DataError, "rows below the header"),
        (patients(site=["A", ""] * 30), {}, DataError, r"30 have an empty 'site', first row 3"),
        (patients(label="yes"), {}, DataError, "at least two classes"),
        (
            patients(label=only(2, ["no"], ["no", "yes"])),
            {},
            DataError,
            r"two classes at the target 'C'.*'no': label some rows",
        ),
        (
            patients(label=only(1, [None], ["no", "yes"])),
            {},
            DataError,
            "'B' has nothing in column 'label'",
        ),
        (
            patients(label=only(1, [1, 0], ["no", "yes"])),
            {},
            DisagreementError,
            r"(?s)'A' has text \('no', 'yes'\).*'B' has numbers \('0', '1'\)",
        ),
        (
            patients(label=only(1, ["No", "Yes"], ["no", "yes"])),
            {},
            DisagreementError,
            "B has 'No', 'Yes'",
        ),
        (
            patients(age=only(1, ["old", "young"], [1, 2])),
            {},
            DisagreementError,
            r"'age': numbers at 'A' .* text at 'B' \('old', 'young'\), numbers at 'C'",
        ),
        (
            patients(age=["?", "3"] * 29 + ["4", "many"]),
            {},
            DataError,
            r"'age', but row 61 at site 'C' has 'many'",
        ),
        (patients()[:41], {}, DataError, "only 1: add rows"),
        (patients()[:20], {"target": "A"}, DataError, "at least one source"),
    ],
)
def test_bad_tables_are_refused(load, frame, options, error, message):
    with pytest.raises(error, match=message):
        load(frame, **options)


class TestSpelling:
    @pytest.mark.parametrize("column", ["age", "label"])
    @pytest.mark.parametrize(
        ("cell", "option"),
        [
            ("{},5", "`decimal=','`"),
            ("{}%", "`percent=True`"),
            ("{} 000", "`thousands=' '`"),
            ("{}_000", "`thousands='_'`"),
            ("{}'000", """`thousands="'"`"""),
            ("{}.000,5", r"`decimal=','` and `thousands='\.'`"),
            ("{},234.5", "`thousands=','`"),
        ],
    )
    def test_numbers_in_another_spelling_are_no_categories(self, load, column, cell, option):
        cells = [cell.format(1 + k) for k in range(60)]
        with pytest.raises(DataError, match=rf"numbers in column '{column}', but row 2.*{option}"):
            load(patients(**{column: cells}))

    def test_they_are_read_by_option_and_remembered(self, load, tmp_path):
        plain = load(patients(age=[1000 + k / 2 for k in range(60)]))
        spelled = patients(age=[f"1.{k // 2:03},{k % 2 * 5}" for k in range(60)])
        task = load(spelled, decimal=",", thousands=".")
        np.testing.assert_array_equal(task.target.x, plain.target.x)
        saved = Preprocessing.from_json(task.preprocessing.to_json())
        assert saved == task.preprocessing
        x = saved.apply(tmp_path / "patients.csv")
        assert x[task.manifest["test"]].tolist() == task.test.x.tolist()

    def test_a_table_without_options_is_saved_as_before(self, load):
        assert "numbers" not in json.loads(load(patients()).preprocessing.to_json())

    def test_codes_that_look_like_numbers_may_be_meant(self, load):
        post_code = [f"{k % 3} 000" for k in range(60)]
        assert load(patients(ward=post_code), categorical="ward").input_shape == (6,)

    def test_the_label_may_be_spelled_otherwise_too(self, load):
        task = load(patients(label=[f"{k},5" for k in range(60)]), decimal=",")
        values = task.target.scale.values(task.sources[0].y)[:2].tolist()
        assert (task.kind, values) == ("regression", pytest.approx([0.5, 1.5], abs=1e-4))

    def test_a_task_file_may_say_it(self, load, tmp_path):
        frame = patients(age=[f"{k % 37},5" for k in range(60)])
        with pytest.raises(DataError, match="decimal"):
            load(frame)
        file = tmp_path / "task.toml"
        file.write_text('[task]\npath = "patients.csv"\ntarget = "C"\ndecimal = ","\n')
        assert load_task(file).input_shape == (3,)


@pytest.mark.parametrize("distinct", [60, 40])
def test_nearly_as_many_categories_as_rows_are_an_identifier(load, distinct):
    frame = patients(name=[f"patient {k % distinct}" for k in range(60)])
    with pytest.raises(DataError, match=rf"'name', but {distinct} of its 60 values differ.*leave"):
        load(frame)
    assert load(frame, columns="age").input_shape == (1,)
    assert load(frame, categorical="name").input_shape == (3 + distinct,)


@pytest.mark.parametrize("cell", ["1e300", "inf", "9" * 400])
@pytest.mark.parametrize("column", ["age", "label"])
@pytest.mark.parametrize("times", [1, 60])
def test_numbers_without_end_are_refused(load, cell, column, times):
    values = [str(k / 2) for k in range(60)]
    with pytest.raises(DataError, match=f"'{column}'"):
        load(patients(**{column: [cell] * times + values[times:]}))


def test_a_test_row_far_from_training_is_named(load):
    frame = patients()
    row = load(frame).manifest["test"][0]
    frame["age"] = frame["age"].astype(float)
    frame.loc[row, "age"] = 1e30
    with pytest.raises(DataError, match=rf"'age' like those of training.* row {row + 2} .*1e\+30"):
        load(frame)


class TestOneFilePerSite:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "clinics"
        folder.mkdir()
        for site, rows in patients().groupby("site"):
            rows.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
        return folder

    def test_file_names_are_the_sites(self, folder, load):
        task = load_task(folder, target="C")
        assert (task.name, task.source_names) == ("clinics", ("A", "B"))
        one_file = load(patients())
        np.testing.assert_array_equal(task.target.x, one_file.target.x)
        assert task.manifest["origin"] == "clinics"

    def test_a_site_column_in_the_files_can_be_ignored(self, folder):
        rows = pd.read_csv(folder / "A.csv").assign(clinic="A")
        rows.to_csv(folder / "A.csv", index=False)
        assert load_task(folder, target="C", site_column="clinic").input_shape == (3,)

    def test_columns_that_differ_are_listed_unless_chosen(self, folder):
        rows = pd.read_csv(folder / "A.csv").rename(columns={"sex": "gender"})
        rows.to_csv(folder / "A.csv", index=False)
        with pytest.raises(DisagreementError, match=r"(?s)'A' lacks 'sex'.*'B' lacks 'gender'"):
            load_task(folder, target="C")
        assert load_task(folder, target="C", columns="age").input_shape == (1,)

    def test_a_site_without_the_label_is_named(self, folder):
        pd.read_csv(folder / "B.csv").drop(columns="label").to_csv(folder / "B.csv", index=False)
        with pytest.raises(DataError, match=r"'label' in the table of site 'B'.*It has: 'age'"):
            load_task(folder, target="C")

    def test_a_site_without_rows_is_named(self, folder):
        (folder / "B.csv").write_text("age,sex,label\n")
        with pytest.raises(DataError, match="'B' has none below its header"):
            load_task(folder, target="C")

    def test_two_files_for_one_site_are_named(self, folder):
        (folder / "B.csv").rename(folder / "a.CSV")
        with pytest.raises(DataError, match=r"in whatever case, but got 'A\.csv' and 'a\.CSV'"):
            load_task(folder, target="C")

    @pytest.mark.parametrize("name", [".D.csv", "._A.csv"])
    def test_a_hidden_file_is_named(self, folder, name):
        (folder / name).write_bytes((folder / "A.csv").read_bytes())
        with pytest.raises(DataError, match=rf"some are hidden, '\{name}': remove"):
            load_task(folder, target="C")

    def test_what_systems_leave_behind_is_no_site(self, folder):
        (folder / ".DS_Store").write_bytes(b"\0")
        assert load_task(folder, target="C").source_names == ("A", "B")

    def test_a_copy_of_another_sites_file_is_named(self, folder):
        (folder / "D.csv").write_bytes((folder / "A.csv").read_bytes())
        with pytest.raises(DataError, match=r"'A\.csv' is a copy of 'D\.csv'"):
            load_task(folder, target="C")

    def test_a_file_that_is_none_is_named(self, folder):
        (folder / "D.csv").symlink_to(folder / "nowhere")
        with pytest.raises(DataError, match=r"'D\.csv' cannot be read"):
            load_task(folder, target="C")
