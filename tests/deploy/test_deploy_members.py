"""``deploy change --join`` and ``--leave``: the run that is there goes on with other members."""

import json

import pytest
from deploying import give_data, patients, plan

from fedbridge.cli.main import main
from fedbridge.deploy import folder_checks, running
from fedbridge.deploy.checking import check
from fedbridge.deploy.running import run_command
from fedbridge.runs.members import Members, read_members

WHY = "its ethics board says so"


@pytest.fixture(autouse=True)
def _no_link(monkeypatch):
    monkeypatch.setattr(folder_checks, "reach_link", lambda *_: None)


@pytest.fixture
def made(made):
    """A deployment whose sites have agreed, with a run in its folder."""
    give_data(made)
    for name in made.plan().sites:
        check(made.site(name).folder)
    check(made.folder)
    made.run.mkdir()
    (made.run / "history.jsonl").write_text("{}")
    return made


def change(made, *words):
    return main(["deploy", "change", str(made.folder), *words])


def describe(made, name, table):
    """What a site does, and sends."""
    site = made.site(name)
    csv = site.folder / "patients.csv"
    table.to_csv(csv, index=False)
    text = site.settings_file.read_text()
    site.settings_file.write_text(text.replace('data = ""', f'data = "{csv}"'))
    check(site.folder)


def found(made, what):
    return [finding for finding in check(made.folder).findings if finding.what == what]


def test_who_agreed_are_the_members(made):
    assert read_members(made.members) == Members(("A", "B"))
    assert str(made.members) in " ".join(run_command(made))


def test_a_newcomer_gets_a_folder_and_the_run_stays(made, capsys):
    schema = made.schema.read_bytes()
    assert change(made, "--join", "C") == 0
    said = capsys.readouterr().out
    assert "hand out sites/C" in said
    assert "fedbridge deploy register" in said
    assert made.plan().sources == ("A", "B", "C")
    assert made.site("C").key.private.exists()
    assert (made.run / "history.jsonl").exists()
    assert made.schema.read_bytes() == schema
    assert read_members(made.members) == Members(("A", "B")), "it has agreed to nothing yet"


def test_it_is_a_member_once_its_data_fit_what_was_agreed_on(made):
    change(made, "--join", "C")
    schema = made.schema.read_bytes()
    reordered = patients("C")[["label", "sex", "age"]]
    describe(made, "C", reordered)
    assert [f.state for f in found(made, "agreement")] == ["ok"]
    assert read_members(made.members) == Members(("A", "B", "C"))
    assert made.schema.read_bytes() == schema


def test_a_newcomer_with_other_categories_does_not_change_what_the_run_goes_by(made):
    change(made, "--join", "C")
    schema = made.schema.read_bytes()
    describe(made, "C", patients("C", sex=["f", "x"] * 20))
    (problem,) = [f for f in found(made, "agreement") if f.state == "problem"]
    assert "Expected C to fit what the members of the run agreed on" in problem.said
    assert read_members(made.members) == Members(("A", "B"))
    assert made.schema.read_bytes() == schema


def test_who_leaves_is_no_member_from_now_on_and_nobody_asks_for_it(made, monkeypatch):
    assert change(made, "--leave", "B", "--why", WHY) == 0
    assert read_members(made.members) == Members(("A", "B"), {"B": WHY})
    assert made.plan().sources == ("A", "B")
    assert (made.run / "history.jsonl").exists()
    made.site("B").description.unlink()
    made.site("B").key.public.unlink()
    report = check(made.folder)
    assert not [f for f in report.findings if f.what in ("B: key", "B: data")]
    assert [f.said for f in report.findings if f.what == "B: left"] == [f"has left for good: {WHY}"]
    assert [*made.public_keys()] == ["A", "T"]


def test_who_has_left_may_join_again_in_its_old_place(made):
    change(made, "--leave", "A")
    change(made, "--join", "A")
    assert (made.plan().sources, made.plan().left) == (("A", "B"), {})
    assert read_members(made.members) == Members(("A", "B"))


def test_a_new_run_begins_without_who_has_left(made):
    change(made, "--leave", "B", "--why", WHY)
    assert change(made, "--method", "fedavg") == 0
    assert made.plan() == plan(sources=("A",), method="fedavg")
    assert read_members(made.members) == Members(("A",))
    assert (made.coordinator / "run-1").exists()


def test_more_rounds_keep_who_has_left_out(made):
    change(made, "--leave", "B", "--why", WHY)
    assert change(made, "--rounds", "9") == 0
    assert made.plan().left == {"B": WHY}
    assert made.run.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--leave T", "Expected a source of this deployment to leave"),
        ("--leave X", "it has A, B"),
        ("--join B", "'B' is there already"),
        ("--join T", "'T' is there already"),
        ("--leave A,B", "at least one source to stay"),
        ("--join C --rounds 9", "by themselves"),
        ("--join a/b", "letters, digits and hyphens"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(made, words, message, capsys):
    before = made.plan()
    assert change(made, *words.split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert made.plan() == before


def test_a_beta_for_each_source_leaves_no_place_for_a_newcomer(made, capsys):
    change(made, "--method", "fedda", "--beta", "[0.1, 0.2]")
    assert change(made, "--join", "C") == 2
    assert "one for each" in " ".join(capsys.readouterr().err.split())


def test_an_app_of_an_earlier_version_is_not_told_what_it_does_not_know(made):
    file = made.app / "pyproject.toml"
    file.write_text(file.read_text().replace('members = ""\n', ""))
    assert "members" not in " ".join(run_command(made))
    assert [*running._places(made)] == ["out", "keys"]


def test_what_changed_is_told_as_json(made, capsys):
    assert change(made, "--leave", "B", "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] == ["left"]
