"""A site's log is a chain, its last hash proves its end, and only approved runs get in."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deploying import deployment, give_data
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedbridge.cli.main import main
from fedbridge.deploy.approval import NotApprovedError, check_approved, hash_of_app, run_hash
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.guard import Guard, stand_in
from fedbridge.deploy.running import write_node_files
from fedbridge.deploy.site_log import START, Answered, SiteLog
from fedbridge.flower.internals import run_clientapp
from fedbridge.flower.messages import SiteError

from flower.pretend import identify  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

ANSWERED = Answered("7", "a" * 64, 1, "train", 10, 1000, "sent", 0.5)


@pytest.fixture
def log(tmp_path):
    log = SiteLog(tmp_path / "log.jsonl")
    for _ in range(4):
        log.add(ANSWERED)
    return log


@pytest.fixture
def site(tmp_path):
    made = deployment(tmp_path / "dep")
    give_data(made)
    return made.site("A")


class TestTheChain:
    def test_every_line_holds_the_hash_of_the_one_before(self, log):
        lines = log.verify()
        assert [line["number"] for line in lines] == [1, 2, 3, 4]
        assert [line["previous"] for line in lines] == [START, *(x["hash"] for x in lines[:3])]
        assert {"time", "run", "round", "kind", "bytes", "epsilon"} <= {*lines[0]}

    def test_the_file_is_the_sites_own(self, log):
        assert log.path.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize(
        ("spoil", "line"),
        [
            (lambda lines: [*lines[:1], *lines[2:]], 2),
            (lambda lines: [*lines[:1], lines[2], lines[1], lines[3]], 2),
            (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
            (lambda lines: [lines[0].replace("1000", "999"), *lines[1:]], 1),
            (lambda lines: [lines[0], lines[1].replace("0.5", "0.1"), *lines[2:]], 2),
            (lambda lines: [*lines, "{}"], 5),
            (lambda lines: [*lines, '{"number": 5'], 5),
            (lambda lines: lines[1:], 1),
        ],
    )
    def test_what_was_changed_is_named_and_nothing_is_added_to_it(self, log, spoil, line):
        text = "".join(f"{one}\n" for one in spoil(log.path.read_text().splitlines()))
        log.path.write_text(text)
        with pytest.raises(DeploymentError, match=f"line {line} does not fit"):
            log.verify()
        with pytest.raises(DeploymentError, match="does not fit"):
            log.add(ANSWERED)
        assert log.path.read_text() == text

    def test_lines_missing_at_the_end_show_to_who_knows_the_last_hash(self, log):
        last = log.verify()[-1]["hash"]
        log.path.write_text("".join(log.path.read_text().splitlines(keepends=True)[:3]))
        assert len(log.verify()) == 3
        with pytest.raises(DeploymentError, match="missing at the end"):
            log.verify(last)


class TestTheCommand:
    def test_verify_says_how_many_and_the_last_hash(self, site, capsys):
        last = SiteLog(site.log).add(ANSWERED)
        assert main(["deploy", "log", "verify", str(site.folder), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == {"site": "A", "lines": 1, "bytes": 1000, "epsilon": 0.5, "last": last}
        assert main(["deploy", "log", "verify", str(site.folder), "--last", last]) == 0
        assert last in capsys.readouterr().out

    def test_the_folder_is_this_one_by_default(self, site, monkeypatch, capsys):
        monkeypatch.chdir(site.folder)
        assert main(["deploy", "log", "verify"]) == 0
        assert "0 messages" in capsys.readouterr().out

    def test_a_broken_one_is_a_problem(self, site, capsys):
        SiteLog(site.log).add(ANSWERED)
        site.log.write_text(site.log.read_text().replace("1000", "1"))
        assert main(["deploy", "log", "verify", str(site.folder)]) == 2
        assert "line 1 does not fit" in capsys.readouterr().err
        assert main(["deploy", "check", str(site.folder)]) == 2

    def test_show_has_a_line_per_message(self, site, capsys):
        SiteLog(site.log).add(ANSWERED)
        assert main(["deploy", "log", "show", str(site.folder)]) == 0
        assert "run 7 train (round 1): sent, 1000 bytes, epsilon 0.5" in capsys.readouterr().out


def approve(site, *hashes):
    text = site.settings_file.read_text()
    site.settings_file.write_text(f"approve = {json.dumps(hashes)}\n{text}")


class TestApproval:
    def test_without_a_list_every_run_is_welcome_and_with_one_only_those(self):
        check_approved("f" * 64, None)
        check_approved("f" * 64, ("f" * 64,))
        for listed in ((), ("a" * 64,)):
            with pytest.raises(NotApprovedError, match=r"hash f{64}"):
                check_approved("f" * 64, listed)

    def test_the_hash_is_of_app_and_settings_but_not_of_the_coordinators_paths(self):
        config = {"rounds": 2, "out": "/a", "keys": "/b", "members": "/e"}
        known = run_hash(b"app", config)
        assert run_hash(b"app", {"keys": "/c", "out": "/d", "rounds": 2}) == known
        assert run_hash(b"ap", config) != known
        assert run_hash(b"app", {**config, "rounds": 3}) != known

    def test_the_same_files_have_the_same_hash_and_others_another(self, tmp_path):
        made = deployment(tmp_path / "dep")
        known = hash_of_app(made.app)
        assert hash_of_app(made.app) == known
        (made.app / "fedbridge_app" / "client_app.py").write_text('"""Other."""\napp = None\n')
        assert hash_of_app(made.app) != known

    @pytest.mark.parametrize("given", ['"abc"', '["abc"]', "[1]", "true"])
    def test_what_is_no_list_of_hashes_is_refused(self, site, given):
        site.settings_file.write_text(f"approve = {given}\n{site.settings_file.read_text()}")
        with pytest.raises(DeploymentError, match="`approve` to be a list of hashes"):
            site.settings()

    def test_a_site_reads_its_list_and_its_check_compares_the_app_that_it_was_sent(
        self, tmp_path, capsys
    ):
        made = deployment(tmp_path / "dep")
        give_data(made)
        site, known = made.site("A"), hash_of_app(made.app)
        made.app.rename(site.app)

        def checked():
            assert main(["deploy", "check", str(site.folder), "--json"]) == 0
            found = json.loads(capsys.readouterr().out)["findings"]
            return [one for one in found if one["what"] == "approval"]

        assert [one["state"] for one in checked()] == ["note"] * 4
        line = checked()[-1]["command"]
        assert tomllib.loads(line)["approve"][0] == known
        site.settings_file.write_text(f"{line}\n{site.settings_file.read_text()}")
        assert [one["state"] for one in checked()] == ["ok"] * 3

    def test_flowers_node_gets_the_settings_without_the_list(self, site):
        approve(site, "a" * 64)
        write_node_files(site)
        text = site.node_config.read_text()
        assert "approve" not in text
        assert 'site = "A"' in text
        assert (site.programs / "flwr-clientapp").stat().st_mode & 0o700 == 0o700


class TestTheGuard:
    @pytest.fixture
    def guard(self, site):
        identify()
        self.sent = []
        flower = {
            "install_from_fab": lambda fab, **more: "installed",
            "push_message": lambda *given: self.sent.append(given),
        }
        guard = Guard(flower, site)
        work = ConfigRecord({"work": json.dumps({"round": 3})})
        guard.asked = Message(RecordDict({"config": work}), 5, "train")
        guard.run, guard.config = "9", {"rounds": 2}
        return guard

    def test_an_app_that_is_not_approved_is_not_even_unpacked(self, guard, site):
        assert guard.install(b"app", skip_prompt=True) == "installed"
        approve(site, run_hash(b"another", {"rounds": 2}))
        with pytest.raises(NotApprovedError, match=run_hash(b"app", {"rounds": 2})):
            guard.install(b"app", skip_prompt=True)

    def test_of_another_error_only_its_kind_leaves_the_site(self, guard, site, caplog):
        site.settings_file.write_text("secret = [")
        with pytest.raises(SiteError) as told:
            guard.install(b"app")
        assert str(told.value).endswith("at the site, whose own log says more")
        assert "secret" not in str(told.value)
        assert str(site.settings_file) in caplog.text

    def test_an_answer_is_in_the_log_before_it_leaves(self, guard, site):
        guard.install(b"app")
        about = ConfigRecord({"site": "A", "epsilon": 1.5})
        content = RecordDict({"site": about, "metrics": MetricRecord({"loss": 1.0})})
        guard.push(None, Message(content, reply_to=guard.asked), None)
        (line,) = SiteLog(site.log).verify()
        assert (line["run"], line["round"], line["kind"]) == ("9", 3, "train")
        assert line["app"] == run_hash(b"app", {"rounds": 2})
        assert line["epsilon"] == 1.5
        assert line["bytes"] > 0
        assert line["answer"] == "sent"
        assert len(self.sent) == 1

    def test_a_refusal_is_logged_too(self, guard, site):
        reply = Message(Error(0, "not\x1b[2J approved"), reply_to=guard.asked)
        guard.push(None, reply, None)
        (line,) = SiteLog(site.log).verify()
        assert line["answer"].startswith("refused: not")
        assert "\x1b" not in line["answer"]
        assert line["bytes"] == 0

    def test_what_cannot_be_logged_does_not_leave(self, guard, site):
        site.log.write_text("torn\n")
        with pytest.raises(DeploymentError):
            guard.push(None, Message(RecordDict(), reply_to=guard.asked), None)
        assert self.sent == []

    def test_flower_still_takes_these_steps_by_these_names(self, monkeypatch):
        module = sys.modules[run_clientapp.__module__]
        taken = Path(module.__file__).read_text().partition("def run_clientapp")[2]
        for name in ("pull_task_input", "install_from_fab", "push_message"):
            assert f"{name}(" in taken
            monkeypatch.setattr(module, name, getattr(module, name))
        before = module.push_message
        guard = stand_in()
        assert module.push_message == guard.push
        assert guard.flower["push_message"] is before

    def test_nothing_heavy_is_imported_before_flowers_heart_beats(self):
        """A node whose process imports torch first takes it for dead on a busy machine."""
        code = "import sys, fedbridge.deploy.guard; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
