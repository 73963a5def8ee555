"""A plan is changed where it stands: keys and everything else stay as they are."""

import json
import shlex
import tomllib

import pytest
from deploying import give_data, patients, plan

from fedbridge.cli.main import main
from fedbridge.deploy import reaching
from fedbridge.deploy.checking import check
from fedbridge.deploy.folders import Deployment
from fedbridge.deploy.writing import run_config, write_deployment


@pytest.fixture(autouse=True)
def _no_link(monkeypatch):
    monkeypatch.setattr(reaching, "PATIENCE", 0.2)


def change(folder, words):
    return main(["deploy", "change", str(folder), *shlex.split(words)])


def secrets(made):
    """Certificates and keys."""
    files = [*made.coordinator.glob("*.*"), *made.sites.rglob("node*"), *made.sites.rglob("*.crt")]
    return {file: file.read_bytes() for file in files if file.is_file()}


def config_of(made):
    content = tomllib.loads((made.app / "pyproject.toml").read_text())
    return content["tool"]["flwr"]["app"]["config"]


def agreement(made):
    return next(f for f in check(made.folder).findings if f.what == "agreement").state


@pytest.fixture
def agreed(made):
    give_data(made)
    for name in made.plan().sites:
        check(made.site(name).folder)
    check(made.folder)
    assert made.schema.exists()
    return made


@pytest.mark.parametrize("option", ["--columns age,wieght", "--impute wieght"])
def test_a_column_that_no_site_has_described_is_refused(agreed, option, capsys):
    for name in agreed.plan().sites:
        patients(name, weight=1.5).to_csv(agreed.site(name).settings().data, index=False)
        check(agreed.site(name).folder)
    before = agreed.plan_file.read_text()
    assert change(agreed.folder, option) == 2
    said = capsys.readouterr().err
    assert f"Expected {option.split()[0]} to name columns that some site has described" in said
    assert "Did you mean 'weight'?" in said
    assert agreed.plan_file.read_text() == before


def test_the_positive_label_is_one_that_the_sites_agreed_on(agreed):
    assert change(agreed.folder, "--positive ja") == 0
    assert agreement(agreed) == "problem"
    assert change(agreed.folder, "--positive no") == 0
    assert agreement(agreed) == "ok"
    assert config_of(agreed)["positive"] == "no"


def test_a_column_may_be_planned_before_all_sites_have_described_theirs(agreed):
    agreed.site("B").description.unlink()
    assert change(agreed.folder, "--columns age,weight") == 0


def test_method_rounds_and_options_need_nothing_of_the_sites(agreed, capsys):
    before = secrets(agreed)
    settings = {n: agreed.site(n).settings_file.read_bytes() for n in agreed.plan().sites}
    words = "--method fedda --beta 0.3 --rounds 9 --encoding int8 --json"
    assert change(agreed.folder, words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == ["method", "rounds", "options", "network"]
    assert told["sites"] == {}
    now = agreed.plan()
    assert (now.method, now.rounds, now.options) == ("fedda", 9, {"beta": 0.3})
    assert config_of(agreed) == run_config(now, agreed.sites)
    assert config_of(agreed)["encoding"] == "int8"
    assert secrets(agreed) == before
    assert {n: agreed.site(n).settings_file.read_bytes() for n in now.sites} == settings
    assert agreed.schema.exists(), "what the sites agreed on still holds"
    assert agreement(agreed) == "ok"


def test_options_of_the_method_before_go_with_it(agreed):
    change(agreed.folder, "--method fedda --beta 0.3 --lr 0.05")
    assert change(agreed.folder, "--method fedavg") == 0
    assert agreed.plan().options == {"lr": 0.05}


def test_what_somebody_wrote_into_the_app_himself_stays(agreed):
    file = agreed.app / "pyproject.toml"
    file.write_text(file.read_text().replace("timeout = 3600", "timeout = 60"))
    change(agreed.folder, "--rounds 9")
    assert (config_of(agreed)["timeout"], config_of(agreed)["rounds"]) == (60, 9)


def test_fewer_columns_need_no_new_letter(agreed, capsys):
    assert change(agreed.folder, "--columns age") == 0
    assert "each of these sites" not in capsys.readouterr().out
    assert not agreed.schema.exists(), "a run must not start with the old one"
    assert agreement(agreed) == "ok"
    assert [*json.loads(agreed.schema.read_text())["columns"]] == [
        {"name": "age", "kind": "numeric"}
    ]


def test_another_label_is_for_every_site_to_agree_to(made, capsys):
    tables = {name: patients(name, ill=["no", "yes"] * 20) for name in "ABT"}
    give_data(made, **tables)
    folders = {name: made.site(name) for name in "ABT"}
    kept = {name: site.settings_file.read_text() for name, site in folders.items()}
    for site in folders.values():
        check(site.folder)
    assert change(made.folder, "--label-column ill --columns age,sex --json") == 0
    told = json.loads(capsys.readouterr().out)
    command = "fedbridge deploy change . --label-column ill && fedbridge deploy check ."
    assert told["sites"] == dict.fromkeys("ABT", command)
    for name, site in folders.items():
        site.settings_file.write_text(kept[name])  # it is elsewhere, as it was handed out
    (asked,) = [f.command for f in check(made.folder).findings if f.what == "A: data"]
    assert asked == command
    main(["deploy", "check", str(made.folder)])
    assert f"\nA: data:\n{command}\n" in capsys.readouterr().out, "on a line, to be pasted"
    for site in folders.values():
        assert change(site.folder, "--label-column ill") == 0
        assert site.settings().data.endswith("patients.csv"), "its own settings stay"
        assert check(site.folder).ok
    assert agreement(made) == "ok"
    assert "`ill`" in made.site("A").start_here.read_text()


def test_a_new_site_gets_a_folder_and_one_that_leaves_keeps_its_own(agreed, capsys):
    before = secrets(agreed)
    assert change(agreed.folder, "--sites A,C") == 0
    said = capsys.readouterr().out
    assert "hand out sites/C" in said
    assert "deploy register" in said
    assert f"{agreed.site('B').folder}: left alone" in said
    assert agreed.plan().sites == ("A", "C", "T")
    assert agreed.site("C").settings().port not in {9094, 9095, 9096}
    assert agreed.site("C").start_here.exists()
    now = secrets(agreed)
    assert {file: now[file] for file in before} == before
    assert change(agreed.folder, "--sites A,B") == 0
    assert {file: secrets(agreed)[file] for file in before} == before
    assert agreement(agreed) == "ok", "its description is still here"


def test_another_target_is_told_to_the_sites_whose_roles_change(agreed, capsys):
    assert change(agreed.folder, "--sites A,T --target B --json") == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert sites["T"].startswith("fedbridge deploy change . --role source &&")
    assert "--role target --seed 0 --n-target 0 --test-fraction 0.3" in sites["B"]
    assert "A" not in sites
    assert shlex.split(sites["B"])[:3] == ["fedbridge", "deploy", "change"]
    assert f"fedbridge predict {agreed.site('B').run}" in agreed.runbook.read_text()


def test_a_run_of_another_plan_is_put_aside_but_more_rounds_go_on(agreed, capsys):
    agreed.run.mkdir()
    (agreed.run / "config.toml").write_text("")
    change(agreed.folder, "--rounds 9")
    assert agreed.run.exists()
    change(agreed.folder, "--method fedavg")
    assert not agreed.run.exists()
    assert (agreed.coordinator / "run-1" / "config.toml").exists()
    assert "run-1: the run of the plan before" in capsys.readouterr().out


def test_nothing_to_change_is_said(agreed, capsys):
    assert change(agreed.folder, "--rounds 2") == 0
    assert "nothing to change" in capsys.readouterr().out
    assert agreed.schema.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method fedad", "Did you mean 'fedda'"),
        ("--lrr 1", "Did you mean 'lr'"),
        ("--sites A,A", "twice"),
        ("--sites A,T", "twice"),
        ("--role target", "--target"),
        ("--columns label", "is the label"),
        ("--dp-clip 1", "its own site.toml"),
    ],
)
def test_what_cannot_be_changes_nothing(agreed, capsys, words, message):
    before = {file: file.read_bytes() for file in agreed.folder.rglob("*") if file.is_file()}
    assert change(agreed.folder, words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {f: f.read_bytes() for f in agreed.folder.rglob("*") if f.is_file()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [("--rounds 3", "--rounds"), ("--kind odd", "`kind`"), ("--lr 1", "site's settings")],
)
def test_a_site_changes_only_what_it_agrees_to(agreed, capsys, words, message):
    file = agreed.site("A").settings_file
    before = file.read_bytes()
    assert change(agreed.site("A").folder, words) == 2
    assert message in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_plan_of_before_is_still_read(tmp_path):
    """Without the options of the network, which it did not hold."""
    write_deployment(plan(), tmp_path / "dep")
    made = Deployment(tmp_path / "dep")
    content = json.loads(made.plan_file.read_text())
    del content["network"]
    made.plan_file.write_text(json.dumps(content))
    assert made.plan() == plan()


def test_settings_of_before_are_still_read_and_changed(agreed):
    file = agreed.site("T").settings_file
    lines = file.read_text().splitlines()
    old = [line for line in lines if not line.startswith(("seed", "n-target", "test-fraction"))]
    file.write_text("\n".join(old))
    assert agreed.site("T").settings().seed == 0
    change(agreed.site("T").folder, "--seed 3")
    assert agreed.site("T").settings().seed == 3
