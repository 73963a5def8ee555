"""``deploy advise``: what leaves a site is said before, and no site plays a part unasked."""

import json
import re
import shutil
import tomllib

import pytest
from deploying import give_data
from flwr.app import Context, RecordDict

from fedbridge.advice.measure import ADVICE
from fedbridge.cli.main import main
from fedbridge.deploy import advising
from fedbridge.deploy.advising import (
    AdviceOptions,
    PlannedTurn,
    from_source,
    from_target,
    planned_turns,
)
from fedbridge.deploy.approval import hash_of_app, run_hash
from fedbridge.deploy.checking import check
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.loading import csv_sites
from fedbridge.deploy.writing import run_config
from fedbridge.flower.messages import ALLOWED
from fedbridge.flower.programs import RunState, built_app
from fedbridge.flower.server import strategy_of


def allow(made, name, **values):
    """Let a site say something else in its settings, and describe its data again."""
    file = made.site(name).settings_file
    text = file.read_text()
    for key, value in values.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    file.write_text(text)
    check(made.site(name).folder)


@pytest.fixture
def agreed(made):
    give_data(made)
    for name in made.plan().sites:
        check(made.site(name).folder)
    check(made.folder)
    return made


def leaves(words, capsys):
    assert main(["deploy", "advise", *map(str, words), "--dry-run", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["leaves"]


class TestWhatLeaves:
    def test_every_record_is_on_the_fixed_list(self):
        patterns = [pattern.replace(r"\d+", "K") for pattern in ALLOWED]
        for _, records, _ in (*from_source(8), *from_target(8)):
            assert set(records.split(", ")) <= set(patterns)

    def test_the_coordinator_sees_it_of_every_site(self, agreed, capsys):
        found = leaves([agreed.folder], capsys)
        assert {(line["site"], line["role"]) for line in found} == {
            ("T", "target"),
            ("A", "source for T"),
            ("B", "source for T"),
        }
        seen_by_target = {line["site"] for line in found if "target" in line["seen_by"]}
        assert seen_by_target == {"A", "B"}

    def test_a_site_sees_it_of_itself_by_its_own_settings(self, agreed, capsys):
        folder = agreed.site("A").folder
        assert "sketches" in str(leaves([folder], capsys))
        assert leaves([folder], capsys)[-1]["sends"].startswith("nothing: site.toml does not say")
        allow(agreed, "A", advice="false")
        assert "sketches" not in str(leaves([folder], capsys))
        allow(agreed, "A", matrix="true")
        assert "target, in turn" in {line["role"] for line in leaves([folder], capsys)}
        assert main(["deploy", "advise", str(folder)]) == 2
        assert "the coordinator to ask for advice" in capsys.readouterr().err

    def test_it_can_be_read(self, agreed, capsys):
        assert main(["deploy", "advise", str(agreed.folder), "--dry-run", "--matrix"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "What leaves a site for this advice" in shown
        assert "Nothing else leaves" in shown


class TestTurns:
    def test_one_turn_needs_nobodys_leave(self, agreed):
        plan = agreed.plan()
        assert planned_turns(agreed, plan, matrix=False) == [PlannedTurn("T", ("A", "B"))]

    def test_only_those_who_allow_it_have_a_turn(self, agreed):
        allow(agreed, "A", matrix="true")
        a, b, t = planned_turns(agreed, agreed.plan(), matrix=True)
        assert (a.target, a.sources) == ("A", ("B",)), "the plan's target is no source unasked"
        assert b.sources == ()
        assert "matrix = true" in b.why
        assert (t.target, t.sources) == ("T", ("A", "B"))
        allow(agreed, "T", matrix="true")
        assert planned_turns(agreed, agreed.plan(), matrix=True)[0].sources == ("B", "T")

    def test_a_run_is_told_what_the_app_lets_it_be_told(self, agreed):
        plan = agreed.plan()
        turn = PlannedTurn("A", ("B", "T"))
        config = AdviceOptions(3, 12, [30]).config(run_config(plan, agreed.sites), turn)
        assert config.keys() <= run_config(plan, agreed.sites).keys()
        whole = {**run_config(plan, agreed.sites), **config}
        made = strategy_of({name: value for name, value in whole.items() if value != ""})
        assert (made.rule, made.target, made.sites) == (ADVICE, "A", ["B", "T"])
        assert made.options["samples"] == [30]
        assert config["n-target"] == 12

    def test_without_a_round_nothing_is_measured(self, agreed, capsys):
        assert main(["deploy", "advise", str(agreed.folder), "--after", "0"]) == 2
        assert "at least one round" in capsys.readouterr().err


class TestRoles:
    def load(self, made, site, method=ADVICE, **node):
        settings = made.site(site).settings()
        own = {"site": site, "role": settings.role, "data": settings.data, **node}
        run = {"target": "A", "method": method, "n-target": 0, "test-fraction": 0.3}
        return csv_sites(made.schema)(Context(1, 1, own, RecordDict(), run))

    def test_a_site_takes_another_role_for_advice_alone_and_if_it_says_so(self, agreed):
        site = self.load(agreed, "A", matrix=True)
        assert (site.role, site.test is not None) == ("target", True)
        assert self.load(agreed, "T", matrix=True).role == "source"
        for how in ({"method": "auto", "matrix": True}, {"matrix": False}, {}):
            with pytest.raises(DeploymentError, match=r"as its site\.toml says"):
                self.load(agreed, "A", **how)

    def test_a_setting_that_is_neither_true_nor_false_is_refused(self, agreed):
        allow_text = agreed.site("A").settings_file
        allow_text.write_text(allow_text.read_text().replace("matrix = false", 'matrix = "no"'))
        with pytest.raises(DeploymentError, match="matrix"):
            agreed.site("A").settings()

    def test_a_site_of_an_earlier_deployment_allows_nothing(self, agreed):
        file = agreed.site("A").settings_file
        file.write_text(re.sub(r"^(advice|matrix) = .*\n", "", file.read_text(), flags=re.M))
        settings = agreed.site("A").settings()
        assert (settings.advice, settings.matrix) == (False, False)


class TestApproval:
    @pytest.fixture
    def started(self, monkeypatch):
        """What Flower is told of every run: over what the app says, it is what a guard hashes."""
        started = []
        monkeypatch.setattr(advising, "start_run", lambda *told: started.append(told[-1]) or 1)
        stopped = RunState(1, "stopped", details="by somebody")
        monkeypatch.setattr(advising, "follow_run", lambda *_: stopped)
        return started

    def test_a_check_shows_run_and_advice_in_one_line_to_paste(self, agreed, started, capsys):
        (app,) = [f for f in check(agreed.folder).findings if f.what == "app"]
        run, advice = tomllib.loads(app.command)["approve"]
        assert run == hash_of_app(agreed.app)
        main(["deploy", "advise", str(agreed.folder)])
        config = {**run_config(agreed.plan(), agreed.sites), **started[0]}
        assert advice == run_hash(built_app(agreed.app), config)

    def test_the_dry_run_shows_the_hashes_of_what_is_asked_here(self, agreed, started, capsys):
        allow(agreed, "A", matrix="true")
        words = ["deploy", "advise", str(agreed.folder), "--after", "2", "--matrix"]
        assert main([*words, "--dry-run", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)["approve"]
        main(words)
        before, app = run_config(agreed.plan(), agreed.sites), built_app(agreed.app)
        assert shown == [run_hash(app, {**before, **told}) for told in started]
        assert len(shown) == 2
        assert main([*words, "--dry-run"]) == 0
        assert f'"{shown[1]}",' in capsys.readouterr().out

    def test_a_site_sees_it_of_the_app_that_it_was_sent(self, agreed, capsys):
        site = agreed.site("A")
        shutil.copytree(agreed.app, site.app)
        assert main(["deploy", "advise", str(site.folder), "--dry-run", "--json"]) == 0
        (advice,) = json.loads(capsys.readouterr().out)["approve"]
        assert any(advice in finding.command for finding in check(site.folder).findings)


def test_every_turn_is_tried_and_what_stopped_it_is_told(agreed, monkeypatch, capsys):
    allow(agreed, "A", matrix="true")
    started = []

    def start_run(deployment, plan, say, config):
        started.append(config["target"])
        return len(started)

    def follow_run(deployment, plan, run_id, say):
        return RunState(run_id, "stopped", details="by somebody")

    monkeypatch.setattr(advising, "start_run", start_run)
    monkeypatch.setattr(advising, "follow_run", follow_run)
    assert main(["deploy", "advise", str(agreed.folder), "--matrix"]) == 2
    said = capsys.readouterr().err
    assert started == ["A", "T"]
    assert "No site could be measured" in said
    assert "--resume" in said
