"""Values of options: what is spelt is read as it was meant, and one value has one spelling."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.base.values import canonical, for_file, is_plain, literal, spelt, value_of

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(PLAIN | st.lists(PLAIN))
def test_what_is_spelt_is_read_as_the_same_value(value):
    wanted = canonical(value)
    text = spelt("beta", wanted)
    assert literal(text) == wanted
    assert spelt("beta", canonical(literal(text))) == text


@pytest.mark.parametrize(
    ("values", "spelling"),
    [
        ((0.5, np.float32(0.5), torch.tensor(0.5)), "0.5"),
        ((1, 1.0, np.int64(1)), "1"),
        (((0.1, 1.0), [0.1, 1], np.array([0.1, 1.0])), "[0.1,1]"),
        ((True, np.bool_(True)), "true"),
        ((None,), "none"),
        (("samples",), "samples"),
        (("true",), '"true"'),
        (("a,b",), '"a,b"'),
    ],
)
def test_one_value_has_one_spelling(values, spelling):
    assert {spelt("weights", canonical(value)) for value in values} == {spelling}


def test_a_list_of_numbers_may_be_written_as_people_write_numbers():
    assert literal("[.1, .2]") == [0.1, 0.2]
    assert literal("[.1,x]") == "[.1,x]"


def test_some_options_are_texts_whatever_they_look_like():
    assert value_of("model", "3") == "3"
    assert value_of("beta", "3") == 3


def test_an_object_has_a_name_in_a_file_and_no_more():
    network = torch.nn.Linear(1, 1)
    assert not is_plain(canonical([network]))
    assert for_file({"model": network, "lr": 1.0}) == {
        "model": "object torch.nn.modules.linear.Linear",
        "lr": 1,
    }


def test_texts_may_be_lists_and_tables_as_cards_write_them():
    assert value_of("drop_columns", '["a", "b,c"]') == ["a", "b,c"]
    assert value_of("label_map", '{"ja": 1}') == {"ja": 1}
    assert value_of("columns", "[mmol/l]") == "[mmol/l]"
    assert value_of("id_column", "3") == "3"
