"""A node reads its own site's file, and plays no part that its site did not agree to."""

import pytest
from deploying import give_data, patients
from flwr.app import Context, RecordDict

from fedbridge.base.errors import DataError, OptionError
from fedbridge.data.load import load_task
from fedbridge.data.tables.preprocessing import Preprocessing
from fedbridge.deploy.checking import check
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.loading import as_agreed, own_rows
from fedbridge.flower.messages import RequestError


@pytest.fixture
def agreed(made):
    give_data(made)
    for name in made.plan().sites:
        check(made.site(name).folder)
    check(made.folder)
    return made


def context(made, site, **run):
    settings = made.site(site).settings()
    node = {"site": settings.site, "role": settings.role, "data": settings.data}
    return Context(
        run_id=1,
        node_id=1,
        node_config=node,
        state=RecordDict(),
        run_config={"target": "T", "seed": 3, "n-target": 6, "test-fraction": 0.3, **run},
    )


def test_rows_are_those_of_the_task_on_one_machine(agreed, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    for name in agreed.plan().sites:
        patients(name).to_csv(folder / f"{name}.csv", index=False)
    task = load_task(folder, "T", 3, n_target=6)
    load = own_rows(agreed.schema)
    for expected in (*task.sources, task.target):
        site = load(context(agreed, expected.name))
        assert site.train.x.equal(expected.x)
        assert site.train.y.equal(expected.y)
    assert load(context(agreed, "T")).test.x.equal(task.test.x)


def test_measures_are_of_the_label_that_the_plan_calls_positive(agreed):
    load = own_rows(agreed.schema)
    assert [
        load(context(agreed, "T", **run)).positive
        for run in ({}, {"positive": ""}, {"positive": "no"}, {"positive": "yes"})
    ] == [1, 1, 0, 1]
    with pytest.raises(OptionError, match=r"`positive` to be one of the labels 'no', 'yes'"):
        load(context(agreed, "T", positive="ja"))


def test_rows_without_labels_are_those_of_one_machine_and_no_source_has_any(agreed, tmp_path):
    """Withheld ones first, then those whose label is empty."""
    tables = {name: patients(name) for name in agreed.plan().sites}
    for name, table in tables.items():
        table.loc[3:7, "label"] = None
        table.to_csv(agreed.site(name).settings().data, index=False)
        (tmp_path / "all").mkdir(exist_ok=True)
        table.to_csv(tmp_path / "all" / f"{name}.csv", index=False)
    task = load_task(tmp_path / "all", "T", 3, n_target=6)
    load = own_rows(agreed.schema)
    assert load(context(agreed, "T")).unlabelled.equal(task.unlabelled)
    assert len(task.unlabelled) > 5
    assert load(context(agreed, "A")).unlabelled is None


@pytest.mark.parametrize(
    "run", [{"n-target": 2}, {"n-target": 2, "test-fraction": 0.03}, {"test-fraction": 0.95}]
)
def test_a_run_cannot_make_the_target_use_a_few_rows_of_many(agreed, run):
    with pytest.raises(RequestError, match="at least 4 rows to train on, but got 2"):
        own_rows(agreed.schema)(context(agreed, "T", **{"n-target": 0, **run}))


def test_a_setting_that_there_is_not_is_refused_by_the_node_too(agreed):
    asked = context(agreed, "A")
    asked.node_config["privacy.clip"] = 1.0
    with pytest.raises(OptionError, match=r"no option 'privacy\.clip'"):
        own_rows(agreed.schema)(asked)


@pytest.mark.parametrize(("site", "target"), [("A", "A"), ("T", "A")])
def test_a_run_that_changes_roles_is_refused(agreed, site, target):
    with pytest.raises(DeploymentError, match=f"the target of this run is {target!r}"):
        own_rows(agreed.schema)(context(agreed, site, target=target))


def test_a_file_that_changed_since_is_refused(agreed):
    patients("A", sex="x").to_csv(agreed.site("A").folder / "patients.csv", index=False)
    with pytest.raises(DataError, match="agree again"):
        own_rows(agreed.schema)(context(agreed, "A"))


def test_rows_of_any_site_are_treated_by_themselves_as_every_site_treats_its_own(agreed):
    """What the coordinator knows is enough for whoever has all rows of a site."""
    saved = as_agreed(agreed.schema)().to_json()
    assert "age" in saved
    how = Preprocessing.from_json(saved)
    expected = own_rows(agreed.schema)(context(agreed, "A"))
    with pytest.warns(UserWarning, match="standardised by these 40 rows"):
        assert how.apply(agreed.site("A").folder / "patients.csv").equal(expected.train.x)


def test_a_site_spells_numbers_in_its_own_way(agreed):
    plain = own_rows(agreed.schema)(context(agreed, "A"))
    file = agreed.site("A").folder / "patients.csv"
    table = patients("A")
    table.assign(age=table["age"].astype(float)).to_csv(file, index=False, sep=";", decimal=",")
    asked = context(agreed, "A")
    asked.node_config["decimal"] = ","
    assert own_rows(agreed.schema)(asked).train.x.equal(plain.train.x)
