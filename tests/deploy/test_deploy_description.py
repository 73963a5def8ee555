"""What a site hands over: enough to agree, and nothing of a row."""

import json
import re

import pytest
from deploying import add_settings, give_data, patients

from fedbridge.data.tables.curation import KnownScale
from fedbridge.data.tables.load import describe_csv
from fedbridge.data.tables.schema import agree
from fedbridge.deploy.description import describe_site, read_description
from fedbridge.deploy.folders import DeploymentError


@pytest.fixture
def write(made, tmp_path):
    def describe(counts=True, **changes):
        give_data(made, A=patients("A", **changes))
        settings = made.site("A").settings()
        csv = made.site("A").folder / "patients.csv"
        description, cautions = describe_site(settings, csv, counts=counts)
        made.site("A").description.write_text(description.to_json())
        return description, cautions

    return describe


def test_it_survives_its_file_but_for_examples_of_numbers(made, write):
    written, _ = write()
    read = read_description(made.site("A").description)
    assert (read.site, read.role, read.rows, read.labelled) == ("A", "source", 40, 40)
    assert read.reading == written.reading
    assert read.summary.labels == ("no", "yes")
    assert read.summary.columns["sex"] == written.summary.columns["sex"]
    assert read.summary.columns["age"].kind == "numeric"
    assert read.summary.columns["age"].examples == ()
    assert set(read.versions) == {"python", "fedbridge", "flwr", "torch"}


def test_no_number_of_the_table_is_in_it(made, write):
    write(age=[73.8125] * 39 + [91.0625], label=[17.3125] * 39 + [2.4375])
    text = made.site("A").description.read_text()
    for canary in ("73.8125", "91.0625", "17.3125", "2.4375"):
        assert canary not in text


def test_counts_can_be_left_out(made, write):
    write(counts=False)
    assert "40" not in made.site("A").description.read_text()
    assert read_description(made.site("A").description).rows is None


def test_what_is_agreed_from_descriptions_is_what_is_agreed_from_tables(made, write):
    write()
    reading = made.plan().reading
    csv = made.site("A").folder / "patients.csv"
    read = read_description(made.site("A").description)
    assert agree({"A": read.summary}, reading) == agree(
        {"A": describe_csv(csv, "A", reading).summary}, reading
    )


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"site": 3},
        {"site": "x" * 2000},
        {"rows": -1},
        {"rows": True},
        {"rows": "40"},
        {"labels": "yes"},
        {"labels": [1]},
        {"columns": [{"name": "c", "kind": "categorical", "levels": []}]},
        {"columns": [{"name": "c", "kind": "numeric", "levels": ["a"]}]},
        {"columns": [{"name": "c", "kind": "odd", "levels": []}]},
        {"columns": [{"name": "c", "levels": []}]},
        {"columns": None},
        {"versions": []},
        {"reading": {}},
        {"reading": {"label_column": "y", "columns": None, "categorical": [], "kind": "odd"}},
    ],
)
def test_a_description_that_is_not_one_is_refused(made, write, change):
    write()
    file = made.site("A").description
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DeploymentError, match="Expected a site's description"):
        read_description(file)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b" " * (2**22 + 1)])
def test_a_file_that_is_no_description_is_refused(tmp_path, content):
    file = tmp_path / "description.json"
    file.write_bytes(content)
    with pytest.raises(DeploymentError, match="Expected a site's description"):
        read_description(file)


def test_what_epsilon_does_not_cover_is_told_until_it_is_known_beforehand(made, write):
    _, cautions = write()
    assert not any("epsilon" in text for text in cautions)
    add_settings(made.site("A"), "record-epsilon = 3.0\nrecord-rounds = 20")
    (told,) = (text for text in write()[1] if "epsilon" in text)
    columns = re.search(r"own rows: (.*?);", told)[1]
    assert "'age'" in columns
    assert "'sex'" not in columns
    assert "scales.age.mean = 0.0" in told
    lines = [
        f"scales.{name}.{part} = 1.0"
        for name in re.findall(r"'(\w+)'", columns)
        for part in ("mean", "deviation")
    ]
    add_settings(made.site("A"), "\n".join(lines))
    assert not any("epsilon" in text for text in write()[1])
    assert made.site("A").settings().curation.scales["age"] == KnownScale(1.0, 1.0)


@pytest.mark.parametrize("kind", ["record-epsilon = 3.0\nrecord-rounds = 2\nrecord", "dp"])
def test_a_delta_that_is_likely_among_so_many_rows_is_told(kind, made, write):
    local = "dp-clip = 1.0\ndp-noise = 2.0\n" if kind == "dp" else ""
    add_settings(made.site("A"), f"{local}{kind}-delta = 1e-2")
    (told,) = (text for text in write()[1] if "delta" in text)
    assert "a delta of 0.01 is not well below one over the 40 rows" in told
