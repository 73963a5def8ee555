"""Labels mean the same class at every site, or the sites are told apart."""

import numpy as np
import pytest
import torch

from fedbridge.base.errors import DataError, DisagreementError, ShapeError
from fedbridge.data.labels import as_labels, code_labels, show


def code(class_names=None, **labels):
    return code_labels({site: as_labels(y, site) for site, y in labels.items()}, class_names)


def test_words_are_numbered_alike_at_all_sites():
    y, names = code(A=["no", "yes", "no"], B=["yes", "no"])
    assert names == ("no", "yes")
    assert (y["A"].tolist(), y["B"].tolist()) == ([0, 1, 0], [1, 0])
    assert y["A"].dtype == torch.int64


def test_whole_numbers_with_gaps_are_numbered_in_their_order():
    y, names = code(A=[10, 2], B=torch.tensor([2, 7]))
    assert names == ("2", "7", "10")
    assert (y["A"].tolist(), y["B"].tolist()) == ([2, 0], [0, 1])


def test_floats_mean_regression_even_when_whole():
    y, names = code(A=[1.0, 2.0], B=np.array([3.0]))
    assert names is None
    assert y["A"].dtype == torch.float32
    assert y["B"].tolist() == [3.0]


def test_truth_values_and_objects_of_text_are_classes():
    assert code(A=[True, False], B=[True])[1] == ("False", "True")
    assert code(A=np.array(["b", "a"], dtype=object), B=["a"])[1] == ("a", "b")


def test_class_names_fix_the_order_and_name_unseen_classes():
    y, names = code(["cat", "dog", "eel"], A=["dog", "cat"], B=["dog"])
    assert (y["A"].tolist(), names) == ([1, 0], ("cat", "dog", "eel"))
    assert code(["cat", "dog", "eel"], A=[2, 0], B=[2])[0]["A"].tolist() == [2, 0]


@pytest.mark.parametrize("labels", [["cat", "fox"], [0, 3], [-1, 0]])
def test_a_label_outside_the_class_names_is_refused(labels):
    with pytest.raises(DataError, match="as `class_names` says"):
        code(["cat", "dog", "eel"], A=labels)


@pytest.mark.parametrize(
    ("here", "there"),
    [(["yes", "no"], [1, 0]), ([1.0, 0.0], [1, 0]), (["1", "0"], [1, 0])],
)
def test_two_codings_of_labels_are_listed_site_by_site(here, there):
    with pytest.raises(DisagreementError, match=r"A has .*; B has .*recode them alike"):
        code(A=here, B=there)


@pytest.mark.parametrize("there", [["Yes", "no"], [" yes", "no"], ["true", "false"]])
def test_two_spellings_of_labels_are_listed_site_by_site(there):
    with pytest.raises(DisagreementError, match=r"A has 'no', 'yes'; B has"):
        code(A=["yes", "no"], B=there)


def test_one_class_everywhere_is_refused():
    with pytest.raises(DataError, match=r"at least two classes.*only 4"):
        code(A=[4, 4], B=[4])


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([[0, 1], [1, 0]], ShapeError),
        ([[0], [1, 0]], ShapeError),
        (3, ShapeError),
        (np.array([None, "a"], dtype=object), DataError),
        (np.array([1j]), DataError),
    ],
)
def test_labels_of_a_wrong_shape_or_type_name_the_site(labels, error):
    with pytest.raises(error, match="'A'"):
        as_labels(labels, "A")


def test_a_long_list_is_cut_in_messages():
    assert show(range(3)) == "0, 1, 2"
    assert show(range(100)).endswith("7, ... (100 in all)")
