"""The four hospitals: complete rows, FLamby's features, splits of its sizes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_data
import torch
from real_data import needs
from sklearn.model_selection import train_test_split

from fedbridge.base.errors import DataError, OptionError, TargetNeededError, UnknownNameError
from fedbridge.base.places import require_dataset
from fedbridge.data.builtin.heart import COLUMNS, HOSPITALS
from fedbridge.data.load import load_task, possible_targets
from fedbridge.data.tables.preprocessing import Preprocessing


def test_every_hospital_can_be_the_target(tiny):
    assert possible_targets("heart") == HOSPITALS
    with pytest.raises(TargetNeededError, match="'cleveland', 'hungarian', 'switzerland', 'va'"):
        load_task("heart")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'switzerland'.*Sites: 'cleveland'"):
        load_task("heart", target="swizerland")


def test_incomplete_rows_are_left_out_and_counted(tiny):
    task = load_task("heart", target="va")
    assert "site 'cleveland': 6 of 60 rows left out for missing values" in task.notes
    assert any(note.startswith("not as published: processed.va.data: ") for note in task.notes)
    rows = [*task.manifest["target"], *task.manifest["unlabelled"], *task.manifest["test"]]
    assert sorted(rows) == [row for row in range(40) if row % 10]


def test_features_are_standardised_by_the_training_rows(tiny):
    task = load_task("heart", target="cleveland")
    for site in (*task.sources, task.target_pool):
        torch.testing.assert_close(site.x.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
        torch.testing.assert_close(site.x.std(0), torch.ones(13), atol=1e-5, rtol=0)
    assert (task.test.x.mean(0).abs() > 0.01).any()


def test_a_feature_that_never_varies_becomes_zero(own_root):
    tiny_data.write_heart(own_root / "heart")
    file = own_root / "heart" / "processed.va.data"
    lines = [line.split(",") for line in file.read_text().splitlines()]
    file.write_text("".join(f"{','.join([*line[:4], '0', *line[5:]])}\n" for line in lines))
    task = load_task("heart", target="va")
    assert (task.test.x == 0).all(0).sum() == 1
    assert bool(task.test.x.isfinite().all())


def test_a_fifth_is_labelled_but_all_of_switzerland(tiny):
    task = load_task("heart", target="hungarian")
    assert (len(task.target), len(task.target_pool)) == (6, 29)
    swiss = load_task("heart", target="switzerland")
    assert swiss.target_pool is None
    assert len(load_task("heart", target="switzerland", n_target=5).target) == 5


def test_a_hospitals_training_rows_are_the_same_in_either_role(tiny):
    as_target = load_task("heart", target="va").manifest
    as_source = load_task("heart", target="cleveland").manifest
    assert sorted([*as_target["target"], *as_target["unlabelled"]]) == as_source["sources"]["va"]


def test_the_seed_decides(tiny):
    one, same, other = (load_task("heart", target="va", seed=seed) for seed in (0, 0, 1))
    assert one.manifest == same.manifest
    assert one.manifest["test"] != other.manifest["test"]


def test_flambys_split_is_the_same_for_every_seed(tiny):
    one, other = (load_task("heart", target="va", seed=seed, split="flamby") for seed in (0, 1))
    assert one.manifest["test"] == other.manifest["test"]
    assert one.manifest["sources"] == other.manifest["sources"]
    assert one.manifest["target"] != other.manifest["target"]
    assert one.manifest["options"]["split"] == "flamby"
    assert len(load_task("heart", target="va", split="flamby", n_target=9).target) == 9
    with pytest.raises(OptionError, match="`split` to be one of seeded, flamby"):
        load_task("heart", target="va", split="flambi")


def flambys_rows(path):
    """Training and test rows, and features, by FLamby's recipe in pandas and scikit-learn."""
    raw = pd.read_csv(path, header=None, na_values="?").drop(columns=[10, 11, 12]).dropna()
    ill = (raw[13] != 0).to_numpy()
    enough = min(ill.sum(), (~ill).sum()) > 2
    training, test = train_test_split(
        np.arange(len(raw)),
        test_size=1.0 - 0.66,
        train_size=0.66,
        random_state=43,
        shuffle=True,
        stratify=ill if enough else None,
    )
    features = pd.get_dummies(raw.iloc[:, :-1], columns=[2, 6], drop_first=True).to_numpy(float)
    return raw.index[np.sort(training)], raw.index[np.sort(test)], features, np.sort(test)


def test_flambys_split_has_its_rows_also_where_it_does_not_stratify(own_root):
    tiny_data.write_heart(own_root / "heart")
    file = own_root / "heart" / "processed.va.data"
    lines = [line.rpartition(",")[0] for line in file.read_text().splitlines()]
    file.write_text("".join(f"{line},{int(k > 2)}\n" for k, line in enumerate(lines)))
    for name in HOSPITALS:
        training, test, _, _ = flambys_rows(own_root / "heart" / f"processed.{name}.data")
        manifest = load_task("heart", target=name, split="flamby").manifest
        assert manifest["test"] == test.tolist()
        assert sorted([*manifest["target"], *manifest["unlabelled"]]) == training.tolist()


def test_a_table_with_the_original_columns_is_treated_as_in_training(tiny):
    task = load_task("heart", target="va")
    lines = (tiny / "heart" / "processed.va.data").read_text().splitlines()
    frame = pd.DataFrame([line.split(",") for line in lines], columns=list(COLUMNS))
    saved = Preprocessing.from_json(task.preprocessing.to_json())
    assert saved == task.preprocessing
    encoded = saved.apply(frame.iloc[task.manifest["test"]].drop(columns=["num", "ca"]))
    assert torch.equal(encoded, task.test.x)
    assert bool(saved.apply(frame).isfinite().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line[:-1], "14 values in each line of .*processed.va.data.*line 2 has 13"),
        (lambda line: ["old", *line[1:]], "a number or .* as 'age' in .*line 2 has 'old'"),
        (lambda line: [*line[:2], "7", *line[3:]], "one of 1, 2, 3, 4 .* as 'cp'.*has '7'"),
        (lambda line: [*line[:-1], "5"], "a label from 0 to 4 .*line 2 has '5'"),
    ],
)
def test_a_line_that_cannot_be_right_is_named(own_root, change, message):
    tiny_data.write_heart(own_root / "heart")
    file = own_root / "heart" / "processed.va.data"
    lines = [line.split(",") for line in file.read_text().splitlines()]
    lines[1] = change(lines[1])
    file.write_text("".join(f"{','.join(line)}\n" for line in lines))
    with pytest.raises(DataError, match=message):
        load_task("heart", target="cleveland")


def test_missing_and_empty_files_are_named(own_root):
    with pytest.raises(DataError, match="fedbridge data fetch heart"):
        load_task("heart", target="va")
    tiny_data.write_heart(own_root / "heart")
    file = own_root / "heart" / "processed.hungarian.data"
    file.write_text("")
    with pytest.raises(DataError, match=r"complete rows in .*hungarian\.data"):
        load_task("heart", target="va")
    file.unlink()
    with pytest.raises(DataError, match=r"hungarian\.data.*cannot be read"):
        load_task("heart", target="va")


@needs("heart")
class TestRealData:
    @pytest.mark.parametrize(
        ("name", "complete", "training", "labelled"),
        [
            ("cleveland", 303, 199, 40),
            ("hungarian", 261, 172, 34),
            ("switzerland", 46, 30, 30),
            ("va", 130, 85, 17),
        ],
    )
    def test_sizes_are_flambys(self, name, complete, training, labelled):
        task = load_task("heart", target=name)
        pool = task.target if task.target_pool is None else task.target_pool
        assert (len(pool), len(pool) + len(task.test)) == (training, complete)
        assert len(task.target) == labelled
        assert task.input_shape == (13,)
        assert not any("not as published" in note for note in task.notes)
        sizes = {"cleveland": 199, "hungarian": 172, "switzerland": 30, "va": 85}
        assert {site.name: len(site) for site in task.sources} == {
            other: size for other, size in sizes.items() if other != name
        }

    def test_features_are_what_pandas_makes_of_the_files(self):
        task = load_task("heart", target="cleveland")
        path = require_dataset("heart") / "processed.cleveland.data"
        raw = pd.read_csv(path, header=None, na_values="?").drop(columns=[10, 11, 12]).dropna()
        features = pd.get_dummies(raw.iloc[:, :-1], columns=[2, 6], drop_first=True)
        training = sorted([*task.manifest["target"], *task.manifest["unlabelled"]])
        own = features.iloc[training].to_numpy(np.float64)
        expected = (own - own.mean(0)) / own.std(0, ddof=1)
        np.testing.assert_allclose(task.target_pool.x.numpy(), expected, atol=1e-5)
        assert task.target_pool.y.tolist() == (raw.iloc[training, -1] > 0).astype(int).tolist()

    @pytest.mark.parametrize("name", HOSPITALS)
    def test_flambys_split_has_its_rows_and_features(self, name):
        task = load_task("heart", target=name, split="flamby")
        path = require_dataset("heart") / f"processed.{name}.data"
        training, test, features, places = flambys_rows(path)
        assert task.manifest["test"] == test.tolist()
        assert sorted([*task.manifest["target"], *task.manifest["unlabelled"]]) == training.tolist()
        own = np.delete(features, places, axis=0)
        deviation = own.std(0, ddof=1)
        expected = (features[places] - own.mean(0)) / np.where(deviation > 0, deviation, 1)
        np.testing.assert_allclose(task.test.x.numpy(), expected, atol=1e-5)

    def test_flambys_split_leaves_switzerland_with_one_class_to_train_on(self):
        task = load_task("heart", target="switzerland", split="flamby")
        assert task.target.y.unique().tolist() == [1]
        assert task.test.y.tolist().count(0) == 1
        with pytest.raises(DataError, match="at least two classes"):
            replace(task, one_class=False)
