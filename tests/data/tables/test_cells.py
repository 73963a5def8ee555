"""A CSV is read as text, and every cell is interpreted in one way."""

import numpy as np
import pandas as pd
import pytest

from fedbridge.base.errors import DataError, OptionError
from fedbridge.data.tables.cells import as_table, read_csv, require_columns
from fedbridge.data.tables.spelling import Spelling, spellings_for


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


def test_a_name_that_stands_twice_in_the_header_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"t\.csv', but 'label' stands there more than once"):
        read_csv(write(tmp_path, "age,label, label \n1,no,no\n"))
    with pytest.raises(DataError, match="of the table, but 'a' stands there more than once"):
        as_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_columns_without_a_name_say_nothing(tmp_path):
    assert read_csv(write(tmp_path, ",a,\n0,1,\n1,2,\n")).names == ("a",)


def test_cells_that_are_lacking_at_the_end_of_a_row_are_missing(tmp_path):
    assert read_csv(write(tmp_path, "a,b\n1\n2,3\n"))["b"].tolist() == ["", "3"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n\n", "its first line is empty"),
        ("a,b\n1,2\n".encode("utf-16"), "line 1 is in another encoding, so save it as UTF-8"),
        ("a,b\n1,é\n".encode("latin-1"), "line 2 is in another encoding"),
        ("a,b\n1,2\n".encode("utf-16-le"), "characters of code 0"),
        (b"a,b\n1,2\n1,2,3\n", "row 3 has 3 cells and the header 2"),
        (b'a,b\n1,"2\n3,4\n', "unexpected end of data"),
        (b"a\n" + b"x" * 200_000, "field larger than field limit"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, problem):
    with pytest.raises(DataError, match=problem):
        read_csv(write(tmp_path, content))


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "large.csv"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(DataError, match=r"large\.csv'.* do not fit into half"):
        read_csv(file)


@pytest.mark.parametrize("cell", ["1e300", "-inf", "9" * 5000, str(2**200)])
def test_numbers_that_no_model_holds_are_refused(cell):
    table = as_table(pd.DataFrame({"age": ["1", cell]}))
    with pytest.raises(DataError, match=r"row 3 has .*numbers go up to 3\.4e\+38"):
        table.numbers(["age"])


@pytest.mark.parametrize("cell", [str(2**63), str(-(2**70)), "3e38", "1e-320"])
def test_other_numbers_are_what_python_makes_of_them(cell):
    values = as_table(pd.DataFrame({"age": ["-1", cell]})).numbers(["age"])
    assert values.tolist() == [[-1.0, float(cell)]]


class TestSpelling:
    @pytest.mark.parametrize(
        ("cell", "options", "value"),
        [
            ("1,5", {"decimal": ","}, 1.5),
            ("-1.234,5", {"decimal": ",", "thousands": "."}, -1234.5),
            ("1,234,567.5", {"thousands": ","}, 1234567.5),
            ("1 000", {"thousands": " "}, 1000.0),
            ("1\u00a0000", {"thousands": " "}, 1000.0),
            ("1\u202f000,25", {"decimal": ",", "thousands": " "}, 1000.25),
            ("1_000", {"thousands": "_"}, 1000.0),
            ("1'000", {"thousands": "'"}, 1000.0),
            ("1\u2019000", {"thousands": "'"}, 1000.0),
            ("12%", {"percent": True}, 0.12),
            ("12,5 %", {"decimal": ",", "percent": True}, 0.125),
        ],
    )
    def test_other_spellings_are_read_by_option_and_named_without_it(self, cell, options, value):
        frame = pd.DataFrame({"age": [cell, "7", ""]})
        spelling = Spelling(**options)
        assert as_table(frame, spelling).numbers(["age"])[0, :2].tolist() == [value, 7.0]
        assert as_table(frame, spelling)["age"].tolist()[0] == str(value).removesuffix(".0")
        assert spelling in spellings_for([cell])
        with pytest.raises(DataError) as caught:
            as_table(frame).numbers(["age"])
        named = " and ".join(f"`{name}={option!r}`" for name, option in options.items())
        assert f"with {named}, or name" in str(caught.value)

    def test_what_two_options_read_is_not_guessed(self):
        with pytest.raises(DataError, match=r"`thousands=','` or `decimal=','`"):
            as_table(pd.DataFrame({"age": ["1,234", "2"]})).numbers(["age"])
        with pytest.raises(DataError, match=r"read such numbers with `decimal=','`, or"):
            as_table(pd.DataFrame({"age": ["1,234", "2,5"]})).numbers(["age"])

    @pytest.mark.parametrize("cell", ["1.5", "1.234", "1,2,3", "1 5", "e5", ".", "x"])
    def test_no_other_spelling_is_read_by_accident(self, cell):
        spelling = Spelling(decimal=",", thousands=" ")
        assert np.isnan(as_table(pd.DataFrame({"age": [cell]}), spelling).values).all()

    def test_numbers_in_memory_need_no_spelling(self):
        table = as_table(pd.DataFrame({"age": [1.5, 2.0, None]}), Spelling(decimal=","))
        assert table["age"].tolist() == ["1.5", "2", ""]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"decimal": ";"}, "`decimal` to be one of '.' ','"),
            ({"thousands": "x"}, "`thousands` to be one of None"),
            ({"decimal": ",", "thousands": ","}, "to differ, but both are ','"),
            ({"percent": 1}, "`percent` to be true or false"),
        ],
    )
    def test_a_spelling_that_cannot_be_is_refused(self, options, message):
        with pytest.raises(OptionError, match=message):
            Spelling(**options)
