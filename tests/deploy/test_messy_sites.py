"""A consortium whose files are all different: settings of each site make one federation of them."""

import json
from importlib.util import find_spec

import pytest
import tomli_w
from deploying import deployment, patients
from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args
from messy import SETTINGS, SOURCES, TARGET, agreed, as_spelled, write_agreed, write_messy

from fedbridge.base.errors import OptionError
from fedbridge.cli.main import main
from fedbridge.data.load import load_task
from fedbridge.deploy import checking, folder_checks, site_check
from fedbridge.deploy.checking import check
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.loading import own_rows


@pytest.fixture(autouse=True)
def _a_link(monkeypatch):
    monkeypatch.setattr(folder_checks, "reach_link", lambda *_: None)
    monkeypatch.setattr(site_check, "is_registered", lambda *_: None)
    monkeypatch.setattr(checking, "_registered", lambda *_: [])


def settle(made, files, own=None):
    """Every site names its file, and says what is otherwise in it."""
    for name in made.plan().sites:
        site = made.site(name)
        text = site.settings_file.read_text(encoding="utf-8")
        text = text.replace('data = ""', f'data = "{files / f"{name}.csv"}"')
        said = tomli_w.dumps((own or {}).get(name, {}))
        site.settings_file.write_text(f"{text}\n{said}", encoding="utf-8")


def said(folder, state, what=None):
    found = [f for f in check(folder).findings if f.state == state]
    return "\n".join(f.said for f in found if what is None or f.what == what)


def node(made, name, **run):
    """A node as Flower starts it: it reads site.toml and joins the names of tables with dots."""
    settings = made.site(name).settings_file
    return Context(
        run_id=1,
        node_id=1,
        node_config=parse_config_args([str(settings)]),
        state=RecordDict(),
        run_config={"target": TARGET, "seed": 0, "n-target": 0, "test-fraction": 0.3, **run},
    )


@pytest.fixture
def messy(tmp_path):
    """All sites say what is otherwise in their files, and have agreed."""
    made = deployment(
        tmp_path / "dep", sources=SOURCES, target=TARGET, reading=checking_reading("chol")
    )
    settle(made, write_messy(tmp_path / "messy"), SETTINGS)
    for name in made.plan().sites:
        assert check(made.site(name).folder).ok, said(made.site(name).folder, "problem")
    assert check(made.folder).ok, said(made.folder, "problem")
    return made


def checking_reading(*impute):
    from fedbridge.data.tables.schema import Reading

    return Reading(impute=impute)


def test_rows_at_the_nodes_are_those_of_one_machine_with_clean_files(messy, tmp_path):
    task = load_task(write_agreed(tmp_path / "agreed"), TARGET, impute="chol")
    for expected in (*task.sources, task.target):
        site = own_rows(messy.schema)(node(messy, expected.name))
        assert site.train.x.equal(expected.x), expected.name
        assert site.train.y.equal(expected.y)
    assert site.test.x.equal(task.test.x)
    new, _ = as_spelled(TARGET, agreed("new"))
    assert site.preprocessing.apply(new).equal(task.preprocessing.apply(agreed("new")))


def test_nothing_of_a_sites_own_words_and_no_range_leaves_it(messy):
    text = messy.site("B").description.read_text(encoding="utf-8")
    for own in ("AgeYears", "Geschlecht", "lich", "Bemerkung", "Fall", "ja", "cp1252"):
        assert own not in text
    for column in json.loads(text)["columns"]:
        assert set(column) == {"name", "kind", "levels"}


def test_a_column_that_one_source_lacks_is_said(messy):
    assert "'chol' is missing at 'D'" in said(messy.folder, "note", "agreement")
    assert json.loads(messy.schema.read_text())["columns"][2]["missing"] == "impute"


class TestProposals:
    def test_the_coordinator_proposes_lines_that_work_when_pasted(self, made, tmp_path):
        """And nothing happens before they are."""
        files = tmp_path / "files"
        files.mkdir()
        for name in made.plan().sites:
            table = patients(name)
            if name == "A":
                table = table.rename(columns={"age": "AgeYears"})
                table["label"] = table["label"].map({"no": "N", "yes": "Y"})
            table.to_csv(files / f"{name}.csv", index=False)
        settle(made, files)
        for name in made.plan().sites:
            check(made.site(name).folder)
        before = made.site("A").settings_file.read_text()
        (found,) = [f for f in check(made.folder).findings if f.what == "A: site.toml"]
        assert "'AgeYears' looks like 'age'" in found.said
        lines = ['rename.AgeYears = "age"', 'label-map.N = "no"', 'label-map.Y = "yes"']
        assert found.command.splitlines() == lines
        assert not made.schema.exists()
        assert made.site("A").settings_file.read_text() == before
        made.site("A").settings_file.write_text(f"{found.command}\n{before}")
        assert check(made.site("A").folder).ok
        assert check(made.folder).ok

    def test_a_site_proposes_by_the_names_that_were_agreed(self, made, tmp_path, capsys):
        assert main(["deploy", "change", str(made.folder), "--columns", "age,sex"]) == 0
        table = patients("A").rename(columns={"age": "AgeYears", "label": "Label"})
        table.to_csv(tmp_path / "A.csv", index=False)
        settle(made, tmp_path)
        found = check(made.site("A").folder).findings
        (proposed,) = [f for f in found if f.command]
        assert proposed.command == 'rename.Label = "label"\nrename.AgeYears = "age"'
        capsys.readouterr()
        assert main(["deploy", "check", str(made.site("A").folder)]) == 2
        assert '\nrename.AgeYears = "age"\n' in capsys.readouterr().out


class TestImpute:
    def test_it_is_offered_changed_and_needs_no_word_of_the_sites(self, made, tmp_path):
        files = tmp_path / "files"
        files.mkdir()
        for name in made.plan().sites:
            table = patients(name, dose=1.5, ward=["x", "y"] * 20)
            gone = {"A": ["dose"], "T": ["ward"]}.get(name, [])
            table.drop(columns=gone).to_csv(files / f"{name}.csv", index=False)
        settle(made, files)
        for name in made.plan().sites:
            check(made.site(name).folder)
        commands = [f.command for f in check(made.folder).findings if f.command]
        command = f"fedbridge deploy change {made.folder} --impute ward,dose"
        assert command in commands
        assert main(command.split()[1:]) == 0
        assert check(made.folder).ok
        target = own_rows(made.schema)(node(made, "T"))
        assert target.train.x.shape[1] == 1 + 2 + (2 + 1) + (1 + 1)
        assert check(made.site("T").folder).ok, "its own check knows it, too"

    def test_a_site_that_lacks_a_planned_column_is_asked(self, made, tmp_path, capsys):
        main(["deploy", "change", str(made.folder), "--columns", "age,sex,dose"])
        capsys.readouterr()
        assert main(["deploy", "change", str(made.folder), "--impute", "dose"]) == 0
        assert "fedbridge deploy change . --impute dose" in capsys.readouterr().out
        patients("A").to_csv(tmp_path / "A.csv", index=False)
        settle(made, tmp_path)
        assert check(made.site("A").folder).ok
        site = str(made.site("A").folder)
        assert main(["deploy", "change", site, "--impute", ""]) == 0
        assert "column 'dose'" in said(made.site("A").folder, "problem", "data")


class TestSettings:
    def test_names_with_dots_are_understood_by_the_node(self, messy):
        flat = node(messy, "B").node_config
        assert flat["recode.grade.x.v.1"] == "low"
        asked = node(messy, "B")
        asked.node_config["recode.grade.x.v.1"] = "other"
        with pytest.raises(ValueError, match="'other'"):
            own_rows(messy.schema)(asked)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('drop-columns = ["a"]', "`drop-columns` to be a text"),
            ('rename.age = ["a"]', "texts and numbers by name in `rename`"),
            ('drop_columns = "a"', "Did you mean 'drop-columns'"),
            ('encoding = "klingon"', "`encoding` to be one that Python knows"),
            ("units.age.factor = 0", "other than 0"),
            ("scales.age.mean = 50.0", "scales.age.deviation"),
            ('impute = "label"', "`impute` to name columns to learn from"),
        ],
    )
    def test_what_means_nothing_is_refused(self, made, line, message):
        site = made.site("A")
        site.settings_file.write_text(
            f"{line}\n{site.settings_file.read_text()}".replace('impute = ""\n', "")
        )
        with pytest.raises(DeploymentError, match=message):
            site.settings()

    def test_what_is_said_of_no_column_is_a_problem(self, made, tmp_path):
        patients("A").to_csv(tmp_path / "A.csv", index=False)
        settle(made, tmp_path, {"A": {"rename": {"Agee": "age"}}})
        text = said(made.site("A").folder, "problem", "data")
        assert "`rename` to name columns of the table, but got 'Agee'" in text

    def test_a_change_leaves_tables_alone(self, made):
        site = made.site("A")
        text = site.settings_file.read_text()
        text = text.replace('impute = ""\n', "") + '\n[rename]\nimpute = "x"\n'
        site.settings_file.write_text(text)
        assert main(["deploy", "change", str(site.folder), "--impute", "age"]) == 0
        assert site.settings().reading.impute == ("age",)
        assert site.settings().curation.renamed == {"impute": "x"}

    def test_a_plan_of_an_earlier_version_is_read(self, made):
        content = json.loads(made.plan_file.read_text())
        content["reading"] |= {"decimal": ".", "thousands": None, "percent": False}
        del content["reading"]["impute"]
        made.plan_file.write_text(json.dumps(content))
        assert made.plan().reading == checking_reading()


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
def test_a_parquet_file_is_as_good(made, tmp_path):
    for name in made.plan().sites:
        patients(name).to_csv(tmp_path / f"{name}.csv", index=False)
    settle(made, tmp_path)
    for name in made.plan().sites:
        check(made.site(name).folder)
    check(made.folder)
    expected = own_rows(made.schema)(node(made, "A"))
    patients("A").to_parquet(tmp_path / "A.parquet")
    file = made.site("A").settings_file
    file.write_text(file.read_text().replace("A.csv", "A.parquet"))
    assert check(made.site("A").folder).ok
    assert own_rows(made.schema)(node(made, "A")).train.x.equal(expected.train.x)


def test_a_node_refuses_what_it_does_not_know(messy):
    asked = node(messy, "A")
    asked.node_config["renames.age"] = "x"
    with pytest.raises(OptionError, match=r"no option 'renames\.age'"):
        own_rows(messy.schema)(asked)
