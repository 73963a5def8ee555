"""A task is checked when it is made."""

import pickle

import pytest
import torch

from fedbridge.base.errors import DataError, NonFiniteError, ShapeError, UnknownTargetError
from fedbridge.data.task import (
    FederatedTask,
    Site,
    UntestedTask,
    check_target_name,
    distant_site,
)

DOMAINS = ("+90%", "+80%", "-90%", "Real World", "va")


def site(name: str = "A", classes: tuple[int, ...] = (0, 1, 2), width: int = 4) -> Site:
    return Site(name, torch.zeros(len(classes), width), torch.tensor(classes))


def task(**changes: object) -> FederatedTask:
    parts = {
        "name": "t",
        "sources": (site("A"), site("B")),
        "target": site("T"),
        "test": site("T (test)"),
        "n_classes": 3,
    }
    return FederatedTask(**{**parts, **changes})


def test_a_task_tells_sizes_and_kind():
    made = task()
    assert (made.input_shape, made.outputs, made.kind) == ((4,), 3, "classification")
    assert made.source_names == ("A", "B")
    assert len(made.target) == 3


def test_a_regression_task_has_as_many_outputs_as_values():
    def values(name: str, *width: int) -> Site:
        return Site(name, torch.zeros(5, 2), torch.zeros(5, *width))

    for width, outputs in (((), 1), ((1,), 1), ((4,), 4)):
        made = task(
            sources=(values("A", *width),),
            target=values("T", *width),
            test=values("T (test)", *width),
            n_classes=None,
        )
        assert (made.kind, made.outputs) == ("regression", outputs)


def test_a_task_may_train_on_all_rows_and_need_no_source():
    nothing = distant_site("T (test)", 0, (4,), n_classes=3)
    made = UntestedTask("t", (), site("T"), nothing, 3)
    assert (made.source_names, len(made.test), made.outputs) == ((), 0, 3)
    with pytest.raises(DataError, match="labels from 0 to 2"):
        UntestedTask("t", (), site("T", (0, 3)), nothing, 3)
    with pytest.raises(DataError, match="at least one source"):
        task(sources=())


def test_a_task_survives_the_way_to_a_worker():
    again = pickle.loads(pickle.dumps(task()))
    assert torch.equal(again.target.y, task().target.y)


def test_a_site_without_rows_is_refused_by_name():
    with pytest.raises(DataError, match="site 'A' has none"):
        Site("A", torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))


def test_labels_must_match_rows():
    with pytest.raises(ShapeError, match="'A' has 2 rows and 3 labels"):
        Site("A", torch.zeros(2, 3), torch.zeros(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused_with_site_and_row(bad):
    x = torch.zeros(4, 3)
    x[2, 1] = bad
    with pytest.raises(NonFiniteError, match=r"features.*site 'A'.*first row 2"):
        Site("A", x, torch.zeros(4))
    with pytest.raises(NonFiniteError, match=r"labels.*site 'A'.*first row 1"):
        Site("A", torch.zeros(2, 3), torch.tensor([0.0, bad]))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sources": ()}, DataError, "at least one source"),
        ({"sources": (site("A"), site("A"))}, DataError, "own name.*'A'"),
        ({"sources": (site("T"),)}, DataError, "own name.*'T'"),
        ({"test": site("T (test)", width=5)}, ShapeError, r"one shape.*T \(test\): \(5,\)"),
        ({"unlabelled": torch.zeros(2, 7)}, ShapeError, r"unlabelled: \(7,\)"),
        ({"sources": (site("A", (0, 3)),)}, DataError, "0 to 2, but site 'A' has 3"),
        ({"sources": (site("A", (0, -1)),)}, DataError, "site 'A' has -1"),
        ({"target_pool": site("P", (0, 5))}, DataError, "site 'P' has 5"),
        ({"n_classes": None}, ShapeError, "regression labels"),
        (
            {"target": site("T", (1, 1))},
            DataError,
            "two classes at the target.*class '1'.*n_target",
        ),
    ],
)
def test_a_task_that_cannot_work_is_refused_when_made(changes, error, message):
    with pytest.raises(error, match=message):
        task(**changes)


def test_class_labels_are_whole_numbers():
    with pytest.raises(ShapeError, match="class indices"):
        task(sources=(Site("A", torch.zeros(2, 4), torch.zeros(2)),))


def test_one_class_at_the_target_is_named_as_the_data_spell_it():
    with pytest.raises(DataError, match="class 'no'"):
        task(target=site("T", (0, 0)), class_names=("no", "yes", "maybe"))


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("-90%", "-90%"),
        ("minus90", "-90%"),
        ("Plus80", "+80%"),
        ("real-world", "Real World"),
        ("VA", "va"),
    ],
)
def test_a_target_is_known_however_it_is_spelled(spelled, name):
    assert check_target_name(spelled, DOMAINS) == name


@pytest.mark.parametrize("unknown", ["90", "90%", "real", "", ["+90%"], 5])
def test_any_other_name_is_refused(unknown):
    with pytest.raises(UnknownTargetError, match=r"Sites: '\+90%', '\+80%', '-90%'"):
        check_target_name(unknown, DOMAINS)


def test_a_spelling_that_two_sites_could_mean_is_refused():
    assert check_target_name("site-1", ("site-1", "site 1")) == "site-1"
    with pytest.raises(UnknownTargetError, match="Sites: 'site-1', 'site 1'"):
        check_target_name("Site_1", ("site-1", "site 1"))
