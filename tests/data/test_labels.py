"""Labels mean the same class at every site, or the sites are told apart."""

import numpy as np
import pytest
import torch

from fedbridge.base.errors import DataError, DisagreementError, ShapeError
from fedbridge.data.labels import AS_THEY_ARE, Scale, as_labels, code_labels, show


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


class TestScale:
    """Numbers to learn are of the order of 1, whatever the values are; all sites have one scale."""

    @pytest.mark.parametrize(
        ("mean", "spread", "scale"),
        [
            (0.5, 1.0, AS_THEY_ARE),
            (-2.0, 3.0, AS_THEY_ARE),
            (200_000.0, 70_000.0, Scale(200_000.0, 100_000.0)),
            (120.0, 15.0, Scale(120.0, 10.0)),
            (0.0, 1e-4, Scale(0.0, 1e-4)),
            (1e6, 1.0, Scale(1e6, 1.0)),
        ],
    )
    def test_it_is_a_power_of_ten_around_a_multiple_of_it(self, mean, spread, scale):
        values = mean + spread * np.random.default_rng(0).choice([-1.0, 1.0], 1000)
        assert Scale.agreed([Scale.of(values)]) == scale

    def test_numbers_and_values_are_each_others_inverse(self):
        values = np.random.default_rng(0).normal(2e5, 7e4, 50)
        scale = Scale.agreed([Scale.of(values)])
        numbers = scale.numbers(values)
        assert 0.1 < float(numbers.std()) < 10
        np.testing.assert_allclose(scale.values(numbers), values, rtol=1e-6)

    def test_one_site_that_is_far_off_does_not_decide(self):
        sites = [Scale(200.0, 10.0), Scale(300.0, 10.0), Scale(1e9, 1e9)]
        assert Scale.agreed(sites) == Scale(300.0, 10.0)

    def test_values_that_never_differ_or_are_all_zero(self):
        assert Scale.of(np.array([700.0, 700.0])) == Scale(1000.0, 1000.0)
        assert Scale.agreed([Scale.of(np.zeros(3))]) == AS_THEY_ARE

    def test_nothing_known_leaves_values_as_they_are(self):
        assert Scale.agreed([]) == AS_THEY_ARE

    @pytest.mark.parametrize("given", [{"size": 0.0}, {"size": float("inf")}, {"centre": np.nan}])
    def test_what_is_no_scale_is_refused(self, given):
        with pytest.raises(ValueError, match="finite centre"):
            Scale(**given)
