"""A CSV is read as text, and every cell is interpreted in one way."""

import numpy as np
import pandas as pd
import pytest

from fedbridge.base.errors import DataError
from fedbridge.data.tables.cells import as_table, read_csv, require_columns


def write(tmp_path, content: str | bytes):
    file = tmp_path / "t.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_seen_in_the_header(tmp_path, separator):
    table = read_csv(write(tmp_path, f"a{separator}b\n1{separator}x\n"))
    assert (table.names, table.text.tolist()) == (("a", "b"), [["1"], ["x"]])


def test_spaces_after_a_separator_do_not_matter(tmp_path):
    table = read_csv(write(tmp_path, 'a, b\n1, "x, y"\n'))
    assert table.text.tolist() == [["1"], ["x, y"]]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert read_csv(write(tmp_path, "\ufeffa,b\n1,2\n")).names == ("a", "b")


def test_blank_lines_are_no_rows_but_count_in_row_numbers(tmp_path):
    table = read_csv(write(tmp_path, "a,b\n1,2\n\n,\n3,4\n"))
    assert table.rows.tolist() == [0, 3]


def test_quoted_cells_may_hold_separators_and_line_ends(tmp_path):
    table = read_csv(write(tmp_path, 'a,b\n"1,\n2",x\n'))
    assert table["a"].tolist() == ["1,\n2"]


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
    text = as_table(pd.DataFrame({"a": pd.Series(cells, dtype=object)}))["a"].tolist()
    assert text == [""] * 11 + ["none", "0"]


def test_whole_floats_are_spelled_as_whole_numbers():
    text = as_table(pd.DataFrame({"a": ["1.0", " 2 ", "3.50", "-4.00", "1.0.0"], "b": [1.0] * 5}))
    assert text["a"].tolist() == ["1", "2", "3.50", "-4", "1.0.0"]
    assert text["b"].tolist() == ["1"] * 5


def test_a_table_without_rows_stays_a_table():
    assert as_table(pd.DataFrame({"a": []})).names == ("a",)


def test_numbers_may_be_missing_but_not_junk():
    values = as_table(pd.DataFrame({"age": ["1", "", "2.5e1", "-3"]})).numbers(["age"])
    np.testing.assert_array_equal(values, [[1, np.nan, 25, -3]])


@pytest.mark.parametrize("junk", ["old", "1,5", "inf", "-Infinity", "1 2", "0x10", "True"])
def test_junk_is_named_with_column_site_row_and_value(junk):
    table = as_table(pd.DataFrame({"age": ["1", "2", junk, junk]}))
    with pytest.raises(DataError) as caught:
        table.take(np.array([1, 3, 2])).numbers(["age"], "North")
    for part in ("'age'", "'North'", "row 5", repr(junk), "2 such cells", "`categorical`"):
        assert part in str(caught.value)


def test_junk_of_any_length_makes_a_short_message():
    with pytest.raises(DataError) as caught:
        as_table(pd.DataFrame({"age": ["x" * 10_000]})).numbers(["age"])
    assert len(str(caught.value)) < 300


def test_a_missing_column_lists_those_there_are():
    with pytest.raises(DataError, match=r"'ages' in here.*Did you mean 'age'.*It has: 'age', 'b'"):
        require_columns(["age", "b"], ["b", "ages"], "here")
