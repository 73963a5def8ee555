"""A CSV is read as text, and every cell is interpreted in one way."""

import numpy as np
import pandas as pd
import pytest

from fedbridge.base.errors import DataError
from fedbridge.data.tables.cells import as_text, checked_numbers, read_csv, require_columns


def write(tmp_path, content: str | bytes):
    file = tmp_path / "t.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_seen_in_the_header(tmp_path, separator):
    frame = read_csv(write(tmp_path, f"a{separator}b\n1{separator}x\n"))
    assert frame.to_dict("list") == {"a": ["1"], "b": ["x"]}


def test_spaces_after_a_separator_do_not_matter(tmp_path):
    frame = read_csv(write(tmp_path, 'a, b\n1, "x, y"\n'))
    assert frame.to_dict("list") == {"a": ["1"], "b": ["x, y"]}


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert list(read_csv(write(tmp_path, "\ufeffa,b\n1,2\n")).columns) == ["a", "b"]


def test_blank_lines_are_no_rows_but_count_in_row_numbers(tmp_path):
    frame = read_csv(write(tmp_path, "a,b\n1,2\n\n,\n3,4\n"))
    assert frame.index.tolist() == [0, 3]


def test_quoted_cells_may_hold_separators_and_line_ends(tmp_path):
    frame = read_csv(write(tmp_path, 'a,b\n"1,\n2",x\n'))
    assert frame["a"].tolist() == ["1,\n2"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "a,b\n1,2\n1,2,3\n",
        "a,b\n1,2,3\n1,2,3\n",
        'a,b\n1,"2\n',
        b"a,b\n\xff\xfe,2\n",
        b"\x89PNG\r\n\x1a\n\x00\x00",
    ],
)
def test_what_is_no_csv_is_refused_by_name(tmp_path, content):
    with pytest.raises(DataError, match=r"t\.csv.*to be a CSV in UTF-8 with a header"):
        read_csv(write(tmp_path, content))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")


def test_missing_values_have_many_spellings_and_one_meaning():
    cells = ["", " ", "NA", "n/a", "NaN", "nan", "null", "?", None, np.nan, pd.NA, "none", "0"]
    text = as_text(pd.DataFrame({"a": pd.Series(cells, dtype=object)}))["a"].tolist()
    assert text == [""] * 11 + ["none", "0"]


def test_whole_floats_are_spelled_as_whole_numbers():
    text = as_text(pd.DataFrame({"a": ["1.0", " 2 ", "3.50", "-4.00", "1.0.0"], "b": [1.0] * 5}))
    assert text["a"].tolist() == ["1", "2", "3.50", "-4", "1.0.0"]
    assert text["b"].tolist() == ["1"] * 5


def test_a_table_without_rows_stays_a_table():
    assert list(as_text(pd.DataFrame({"a": []})).columns) == ["a"]


def test_numbers_may_be_missing_but_not_junk():
    values = checked_numbers(pd.Series(["1", "", "2.5e1", "-3"], name="age"))
    np.testing.assert_array_equal(values, [1, np.nan, 25, -3])


@pytest.mark.parametrize("junk", ["old", "1,5", "inf", "-Infinity", "1 2", "0x10", "True"])
def test_junk_is_named_with_column_site_row_and_value(junk):
    cells = pd.Series(["1", "2", junk, junk], name="age", index=[0, 4, 7, 9])
    with pytest.raises(DataError) as caught:
        checked_numbers(cells, "North")
    for part in ("'age'", "'North'", "row 9", repr(junk), "2 such cells", "`categorical`"):
        assert part in str(caught.value)


def test_junk_of_any_length_makes_a_short_message():
    with pytest.raises(DataError) as caught:
        checked_numbers(pd.Series(["x" * 10_000], name="age"))
    assert len(str(caught.value)) < 300


def test_a_missing_column_lists_those_there_are():
    with pytest.raises(DataError, match=r"'ages' in here.*Did you mean 'age'.*It has: 'age', 'b'"):
        require_columns(pd.DataFrame({"age": [1], "b": [2]}), ["b", "ages"], "here")
