"""``deploy init`` writes all that is needed, keeps secrets secret, and never overwrites."""

import re
import shlex
import stat
import tomllib
import zipfile
from io import BytesIO

import pytest
from deploying import deployment, plan
from flwr.cli.build import build_fab_from_disk

from fedbridge.base.files import StorageError
from fedbridge.cli.main import build_parser
from fedbridge.data.tables.schema import Reading
from fedbridge.deploy import writing
from fedbridge.deploy.folders import Deployment, DeploymentError
from fedbridge.deploy.writing import write_deployment
from fedbridge.flower.pki import check_certificates, check_node_key, read_public_key
from fedbridge.flower.server import strategy_of


def content_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_every_site_has_a_key_of_its_own_and_the_authority(made):
    keys = set()
    for name in made.plan().sites:
        site = made.site(name)
        check_node_key(site.key)
        keys.add(read_public_key(site.key.public))
        assert site.ca.read_bytes() == made.certificates.ca.read_bytes()
        assert not (site.folder / "ca.key").exists()
    assert len(keys) == 3


def test_secrets_are_for_their_owner_alone(made):
    for file in (
        made.certificates.ca_key,
        made.certificates.server_key,
        made.site("A").key.private,
    ):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (made.coordinator, made.site("A").folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("host", ["link.example.org", "10.0.0.7", "localhost"])
def test_the_links_certificate_is_for_its_host(tmp_path, host):
    made = deployment(tmp_path / "dep", host=host)
    check_certificates(made.coordinator, host)
    check_certificates(made.coordinator, "127.0.0.1")


def test_a_sites_settings_say_what_was_agreed(tmp_path):
    reading = Reading("disease", ("age", "sex"), ("sex",), "classification")
    made = deployment(tmp_path / "dep", reading=reading, host="link.example.org", port=9000)
    settings = made.site("T").settings()
    assert (settings.site, settings.role, settings.data) == ("T", "target", "")
    assert (settings.link, settings.reading) == ("link.example.org:9000", reading)
    ports = {made.site(name).settings().port for name in made.plan().sites}
    assert len(ports) == 3


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flower_bundles_the_app_with_the_schema_and_without_secrets(made):
    made.schema.write_text("{}")
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(made.app))) as bundle:
        names = set(bundle.namelist())
    assert {"fedbridge_app/client_app.py", "fedbridge_app/schema.json"} <= names
    assert not [name for name in names if "key" in name or "site" in name]


def test_the_apps_settings_make_a_strategy(tmp_path):
    made = deployment(tmp_path / "dep", method="fedda", options={"beta": 0.5, "lr": 0.1})
    settings = tomllib.loads((made.app / "pyproject.toml").read_text())
    config = settings["tool"]["flwr"]["app"]["config"]
    strategy = strategy_of({key: value for key, value in config.items() if value != ""})
    assert (strategy.rule, strategy.target, strategy.sites) == ("fedda", "T", ["A", "B"])
    assert strategy.secure
    assert strategy.options == {"beta": 0.5, "lr": 0.1, "model": "mlp"}


def test_the_apps_modules_are_flower_apps(made, monkeypatch):
    monkeypatch.syspath_prepend(made.app)
    from fedbridge_app import client_app, server_app

    assert type(client_app.app).__name__ == "ClientApp"
    assert type(server_app.app).__name__ == "ServerApp"


def commands_of_ours(text):
    """What a page tells people to type, by the command's name, understood by the parser."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    ours = [shlex.split(line) for line in lines if line.startswith("fedbridge ")]
    parser = build_parser()
    return {
        " ".join(words[1 : 3 if words[1] == "deploy" else 2]): parser.parse_args(words[1:])
        for words in ours
    }


class TestRunbook:
    def test_every_command_of_ours_is_understood(self, made):
        asked = commands_of_ours(made.runbook.read_text())
        own = {"link", "register", "check", "advise", "change", "run", "renew"}
        assert set(asked) == {*(f"deploy {name}" for name in own), "predict"}

    def test_flowers_own_commands_are_there_too(self, made):
        text = made.runbook.read_text()
        for name in made.plan().sites:
            key = made.site(name).key.public
            assert f"flwr supernode register {key} fedbridge --name {name}" in text
            assert f"sites/{name}/START-HERE.md" in text
        assert "--enable-supernode-auth" in text
        assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in text

    def test_its_last_section_says_how_to_use_the_model(self, made):
        last = made.runbook.read_text().rpartition("\n## ")[2]
        assert last.startswith("Use the model")
        assert f"fedbridge predict {made.site('T').run} NEW.csv" in last
        assert "has no model to use" in last

    def test_of_a_method_without_a_decision_the_coordinator_has_the_model_too(self, tmp_path):
        made = deployment(tmp_path / "dep", method="fedavg")
        assert "The same network is in `coordinator/run`" in made.runbook.read_text()


class TestStartHere:
    def test_every_site_has_its_own_page_with_exact_commands(self, made):
        for name in made.plan().sites:
            text = made.site(name).start_here.read_text()
            assert text.startswith(f"# Start here: site {name} (")
            own = {"check", "change", "node"}
            more = {"predict"} if name == "T" else set()
            assert set(commands_of_ours(text)) == {*(f"deploy {word}" for word in own), *more}
            assert "server.key" not in text


class TestNothingIsOverwritten:
    def test_the_same_again_changes_nothing(self, made):
        before = content_of(made.folder)
        assert not write_deployment(plan(), made.folder)
        assert content_of(made.folder) == before

    def test_another_plan_is_refused(self, made):
        before = content_of(made.folder)
        with pytest.raises(
            DeploymentError,
            match=r"other settings \(rounds\): change it with `fedbridge deploy change",
        ):
            write_deployment(plan(rounds=3), made.folder)
        assert content_of(made.folder) == before

    def test_a_folder_with_other_things_is_refused(self, tmp_path):
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(DeploymentError, match="holds other things"):
            write_deployment(plan(), tmp_path)

    def test_an_empty_folder_will_do(self, tmp_path):
        (tmp_path / "dep").mkdir()
        assert write_deployment(plan(), tmp_path / "dep")

    def test_where_nothing_can_be_written_it_says_so(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="choose another with --out"):
            write_deployment(plan(), tmp_path / "file" / "folder")

    def test_a_failure_leaves_nothing(self, tmp_path, monkeypatch):
        def fail(*_: object) -> str:
            raise OSError("disk full")

        monkeypatch.setattr(writing, "runbook", fail)
        with pytest.raises(StorageError, match="disk full"):
            write_deployment(plan(), tmp_path / "dep")
        assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_plan_is_no_deployment(tmp_path):
    with pytest.raises(DeploymentError, match="`fedbridge deploy init`"):
        Deployment(tmp_path).plan()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('role = "source"', 'role = "boss"', "neither source nor target"),
        ('site = "A"', "", "to say 'site'"),
        ("port = 9094", 'port = "x"', "cannot be used"),
        ('kind = ""', 'kind = "guess"', "`kind`"),
        ("site =", "site", "cannot be used"),
    ],
)
def test_settings_of_a_site_that_make_no_sense_are_refused(made, old, new, message):
    file = made.site("A").settings_file
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DeploymentError, match=message):
        made.site("A").settings()
