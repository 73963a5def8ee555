"""``fedbridge deploy`` on the command line."""

import json
import os

import pytest
from deploying import give_data

from fedbridge.cli import deploy
from fedbridge.cli.main import main
from fedbridge.deploy import folder_checks
from fedbridge.deploy.folders import Deployment
from fedbridge.flower.pki import check_node_key, read_authorities, signer


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "dep"


@pytest.fixture
def init(folder):
    def run(*more):
        return main(
            ["deploy", "init", "--sites", "A,B", "--target", "T", "--out", str(folder), *more]
        )

    return run


def test_init_writes_a_deployment_and_says_what_comes_next(init, folder, capsys):
    assert init() == 0
    assert f"what to do: {folder / 'RUNBOOK.md'}" in capsys.readouterr().out
    assert init() == 0
    assert "left alone" in capsys.readouterr().out


def test_options_reach_the_plan(init, folder, capsys):
    words = "--label-column disease --columns age,sex --categorical sex --kind classification"
    words += " --host link.example.org --port 9000 --method fedda --beta 0.3 --rounds 7 --seed 2"
    words += " --model mlp:16 --lr 0.05 --n-target 20 --test-fraction 0.4 --wait 60 --json"
    assert init(*words.split()) == 0
    assert json.loads(capsys.readouterr().out)["written"] is True
    plan = Deployment(folder).plan()
    assert (plan.address, plan.method, plan.rounds) == ("link.example.org:9000", "fedda", 7)
    assert (plan.reading.columns, plan.reading.categorical) == (("age", "sex"), ("sex",))
    assert plan.options == {"beta": 0.3, "lr": 0.05}
    assert plan.network == {"wait": 60}
    assert (plan.n_target, plan.test_fraction, plan.model, plan.seed) == (20, 0.4, "mlp:16", 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sites A,A", "twice"),
        ("--method fedad", "Did you mean 'fedda'"),
        ("--method fada", "sites elsewhere"),
        ("--lrr 0.1", "Did you mean 'lr'"),
        ("--encoding int7", "int8"),
        ("--dp-clip 1", "its own site.toml"),
        ("--device cuda", "its own site.toml"),
        ("--model nlp", "Did you mean 'mlp'"),
        ("--model my_networks:make", "built-in model"),
        ("--days 0", "more than 0"),
        ("--days nan", "more than 0"),
        ("--lr -1", "learning rate above 0"),
        ("--port 0", "`port`"),
        ("--kind odd", "`kind`"),
        ("--host https://x", "leave out port and https"),
        ("--columns label,age", "is the label"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(init, folder, capsys, words, message):
    name, value = words.split()
    assert init(name, value) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not folder.exists()


def test_check_shows_a_table_and_has_its_own_status(init, folder, capsys, monkeypatch):
    init()
    made = Deployment(folder)
    assert main(["deploy", "check", str(made.site("A").folder)]) == 2
    assert "to be put in order" in capsys.readouterr().out
    give_data(made)
    monkeypatch.setattr(folder_checks, "reach_link", lambda *_: None)
    assert main(["deploy", "check", str(made.site("A").folder), "--no-counts"]) == 0
    assert "all in order" in capsys.readouterr().out
    assert json.loads(made.site("A").description.read_text())["rows"] is None


def test_check_in_json_has_every_finding(init, folder, capsys):
    init()
    capsys.readouterr()
    assert main(["deploy", "check", str(folder / "sites" / "A"), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    states = {finding["state"] for finding in report["findings"]}
    assert states == {"ok", "note", "warning", "problem"}


@pytest.mark.parametrize(
    ("command", "where", "shown"),
    [
        ("link", "", "flower-superlink --host 127.0.0.1 --port 8000"),
        ("register", "", "--name A"),
        ("run", "", "flwr run"),
        ("node", "sites/A", "flower-supernode --superlink localhost:8000"),
    ],
)
def test_commands_can_be_shown_instead_of_run(init, folder, capsys, command, where, shown):
    init()
    assert main(["deploy", command, str(folder / where), "--print"]) == 0
    out = capsys.readouterr().out
    assert shown in out
    assert "export FLWR_HOME=" in out


def test_a_run_needs_a_schema(init, folder, capsys):
    init()
    assert main(["deploy", "run", str(folder)]) == 2
    assert "no " in (error := capsys.readouterr().err)
    assert "`fedbridge deploy check`" in error


def test_a_link_that_is_not_there_is_said(init, folder, capsys):
    init("--port", "1")
    assert main(["deploy", "register", str(folder)]) == 2
    assert "localhost:1" in capsys.readouterr().err


def test_renew_replaces_the_certificate_and_keeps_the_authority(init, folder):
    init()
    files = Deployment(folder).certificates
    before = files.ca.read_bytes(), files.server.read_bytes()
    assert main(["deploy", "renew", str(folder), "--days", "9"]) == 0
    assert files.ca.read_bytes() == before[0]
    assert files.server.read_bytes() != before[1]


def test_renew_makes_a_new_authority_in_time_and_puts_it_where_sites_get_it(init, folder, capsys):
    init("--days", "20")
    made = Deployment(folder)
    assert main(["deploy", "renew", str(folder)]) == 0
    assert "give every site its ca.crt" in capsys.readouterr().out
    assert len(read_authorities(made.certificates.ca)) == 2
    for name in made.plan().sites:
        assert made.site(name).ca.read_bytes() == made.certificates.ca.read_bytes()
    assert main(["deploy", "renew", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["authority"] is False
    assert signer(made.certificates) == read_authorities(made.certificates.ca)[0]
    assert main(["deploy", "renew", str(folder), "--authority"]) == 0
    assert len(read_authorities(made.certificates.ca)) == 3


def test_nobody_else_can_write_to_what_it_writes(init, folder, capsys):
    before = os.umask(0)
    try:
        init()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert not [p for p in (folder, *folder.rglob("*")) if p.stat().st_mode & 0o022]


def test_a_site_makes_a_key_of_its_own_but_not_over_another(init, folder, capsys):
    init()
    site = Deployment(folder).site("A")
    assert main(["deploy", "key", str(site.folder)]) == 2
    assert "keep it" in capsys.readouterr().err
    old = site.key.public.read_bytes()
    site.key.private.unlink()
    assert main(["deploy", "key", str(site.folder)]) == 0
    check_node_key(site.key)
    assert site.key.public.read_bytes() != old


def test_without_flower_it_says_what_to_install(init, capsys, monkeypatch):
    monkeypatch.setattr(deploy, "find_spec", lambda _: None)
    assert init() == 2
    assert 'pip install "fedbridge[flower]"' in capsys.readouterr().err
