"""The checks that every option goes through: what passes, and what a refused one is told."""

import re

import numpy as np
import pytest

from fedbridge.base.errors import OptionError, UnknownOptionError
from fedbridge.base.options import check_choice, check_flag, check_known, check_number, check_whole


def refused(check, *args, **limits):
    with pytest.raises(OptionError) as error:
        check("x", *args, **limits)
    return str(error.value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_any_type_become_ints(value):
    found = check_whole("x", value, least=3, most=3)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("value", [2, 6, 3.0, "3", True, None])
def test_other_values_are_no_whole_numbers_in_the_range(value):
    said = refused(check_whole, value, least=3, most=5)
    assert said == f"Expected `x` to be a whole number from 3 to 5, but got {value!r}."


@pytest.mark.parametrize(
    ("limits", "told"),
    [({}, "a whole number, but"), ({"least": 4}, "a whole number of at least 4, but")],
)
def test_a_whole_number_has_the_limits_it_is_given(limits, told):
    assert check_whole("x", 4, **limits) == 4
    assert told in refused(check_whole, "4", **limits)


@pytest.mark.parametrize(
    ("limits", "within", "outside", "told"),
    [
        ({}, -1e300, np.inf, "to be a number that is finite"),
        ({"least": 0}, 0, -0.1, "to be a number of at least 0"),
        ({"above": 0}, 1e-9, 0, "to be a number above 0"),
        ({"most": 2}, 2, 2.1, "to be a number of at most 2"),
        ({"below": 2}, 1.9, 2, "to be a number below 2"),
        ({"least": 0, "most": 1}, 1, 1.1, "in [0, 1]"),
        ({"above": 0, "most": 1}, 1, 0, "in (0, 1]"),
        ({"least": 0, "below": 1}, 0, 1, "in [0, 1)"),
        ({"above": 0, "below": 0.5}, 0.25, 0.5, "in (0, 0.5)"),
    ],
)
def test_numbers_lie_within_their_limits(limits, within, outside, told):
    found = check_number("x", np.float64(within), **limits)
    assert found == within
    assert type(found) is float
    for wrong in (outside, float("nan"), "1", True, None):
        assert refused(check_number, wrong, **limits) == f"Expected `x` {told}, but got {wrong!r}."


def test_a_flag_is_true_or_false():
    assert check_flag("cache", value=False) is False
    with pytest.raises(OptionError, match="`cache` to be true or false, but got 'maybe'"):
        check_flag("cache", "maybe")


def test_a_choice_is_one_of_those_known_and_the_nearest_is_suggested():
    check_choice("x", None, ("tensor", None))
    said = refused(check_choice, "tensors", ("tensor", None))
    assert (
        said == "Expected `x` to be one of tensor, None, but got 'tensors'. Did you mean 'tensor'?"
    )


def test_names_of_options_are_known_and_the_nearest_is_suggested():
    check_known({"lr": 1}, ("lr", "steps"), "the run")
    told = re.escape(
        "Expected options of the run, but there is no option 'step'. Did you mean 'steps'? "
        "Known: lr, steps."
    )
    with pytest.raises(UnknownOptionError, match=told):
        check_known(["lr", "step"], ("lr", "steps"), "the run")


def test_a_whole_number_that_no_float_can_hold_is_refused():
    with pytest.raises(OptionError, match="`lr` to be a number above 0"):
        check_number("lr", 10**400, above=0)
