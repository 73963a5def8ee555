"""``deploy check`` says what is in order, what is not, and what to do about it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from deploying import add_settings, deployment, give_data, patients, plan
from links import answering

from fedbridge.cli.main import main
from fedbridge.data.tables.schema import Schema
from fedbridge.deploy import checking, folder_checks
from fedbridge.deploy.checking import check
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.writing import renew
from fedbridge.flower import pki
from fedbridge.flower.pki import (
    make_certificates,
    make_node_key,
    read_public_key,
    renew_server_certificate,
)
from fedbridge.flower.programs import Node


@pytest.fixture(autouse=True)
def _a_link(monkeypatch):
    """A link answers that knows nobody, unless a test says otherwise."""
    monkeypatch.setattr(folder_checks, "reach_link", lambda *_: None)
    monkeypatch.setattr(checking, "Control", Known)
    Known.nodes_of_link = ()


class Known:
    """A link that knows some nodes."""

    nodes_of_link: tuple[Node, ...] = ()

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> "Known":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> tuple[Node, ...]:
        return self.nodes_of_link


@pytest.fixture
def ready(made):
    """Every site has data, has described them, and is online."""
    give_data(made)
    for name in made.plan().sites:
        assert check(made.site(name).folder).ok
    Known.nodes_of_link = tuple(
        Node(number, name, read_public_key(made.site(name).key.public), online=True, activated="")
        for number, name in enumerate(made.plan().sites)
    )
    return made


def said(folder, what, state=None):
    """All that is found on one thing, in one text."""
    found = [finding for finding in check(folder).findings if finding.what == what]
    assert found, what
    return " ".join(f.said for f in found if state is None or f.state == state)


def check_of(made, what):
    """The only finding on one thing."""
    (found,) = [finding for finding in check(made.folder).findings if finding.what == what]
    return found


def test_a_folder_of_neither_kind_is_refused(tmp_path):
    with pytest.raises(DeploymentError, match="neither"):
        check(tmp_path)


class TestAtASite:
    def test_a_new_folder_lacks_only_the_data(self, made):
        report = check(made.site("A").folder)
        assert [f.what for f in report.findings if f.state == "problem"] == ["data"]
        assert "`data` in site.toml is empty" in said(made.site("A").folder, "data")

    def test_with_data_all_is_in_order_and_described(self, made):
        give_data(made)
        assert check(made.site("A").folder).ok
        description = json.loads(made.site("A").description.read_text())
        assert [column["name"] for column in description["columns"]] == ["age", "sex"]
        assert description["rows"] == 40

    def test_counts_can_be_left_out(self, made):
        give_data(made)
        check(made.site("A").folder, counts=False)
        assert json.loads(made.site("A").description.read_text())["rows"] is None

    def test_no_privacy_is_a_warning_and_never_in_order(self, made):
        assert "no privacy" in said(made.site("A").folder, "privacy", "warning")
        assert not said(made.site("A").folder, "privacy", "ok")

    def test_privacy_is_told_with_its_price(self, made):
        add_settings(made.site("A"), "dp-clip = 0.5\ndp-noise = 3.0\ndp-budget = 20")
        text = said(made.site("A").folder, "privacy", "ok")
        assert text == "clip 0.5, noise 3: epsilon 11.4 in 10 rounds; it stops at 20"

    def test_clipping_without_noise_is_no_privacy_either(self, made):
        add_settings(made.site("A"), "dp-clip = 0.5\ndp-noise = 0")
        assert "no privacy" in said(made.site("A").folder, "privacy", "warning")

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ("dp_clip = 1.0\ndp_noise = 1.0", "Did you mean 'dp-clip'"),
            ("dp-clip = 1.0\ndp-nosie = 1.0", "Did you mean 'dp-noise'"),
            ("dp-clip = 1.0", "`dp-noise` is missing"),
            ('dp-clip = 1.0\ndp-noise = "much"', "`dp-noise`"),
            ("clip = 1.0\nnoise = 1.0", "no option 'clip'. Did you mean 'dp-clip'"),
            ("[privacy]\nclip = 1.0", "no option 'privacy'"),
            ("[dp]\nclip = 1.0", "no option 'dp'"),
            ("least_batch = 4", "Did you mean 'least-batch'"),
            ("least-batch = 0", "`least-batch`"),
            ("most-rounds = 2.5", "`most-rounds`"),
            ("memroy = 'x'", "Did you mean 'memory'"),
            ("memory = ['x']", "Expected `memory` to be a text"),
        ],
    )
    def test_a_slip_in_the_settings_never_turns_them_off(self, made, lines, message):
        add_settings(made.site("A"), lines)
        with pytest.raises(DeploymentError, match=message):
            check(made.site("A").folder)

    def test_a_site_computes_on_the_cpu_unless_it_says_otherwise(self, made):
        assert said(made.site("A").folder, "device", "ok") == "computes on cpu"

    def test_a_device_that_is_not_there_is_a_problem_in_one_sentence(self, made):
        add_settings(made.site("A"), 'device = "toaster"')
        text = said(made.site("A").folder, "device", "problem")
        assert text.startswith("Expected a `device` that is there, such as 'cpu', but got 'toast")

    def test_floors_are_told_and_weaker_ones_are_a_warning(self, made):
        assert "least-batch 2" in said(made.site("A").folder, "floors", "ok")
        add_settings(made.site("A"), "least-batch = 1\nmost-rounds = 9")
        assert said(made.site("A").folder, "floors", "warning").endswith(": least-batch = 1")

    def test_rare_categories_are_a_note(self, made):
        give_data(made, A=patients("A", sex=["f"] * 39 + ["m"]))
        assert "fewer than 5 rows each have 'm'" in said(made.site("A").folder, "data", "note")
        assert check(made.site("A").folder).ok

    @pytest.mark.parametrize(
        ("path", "message"),
        [("patients.csv", "whole path"), ("/no/where.csv", "cannot be read")],
    )
    def test_data_that_cannot_be_read_are_a_problem(self, made, path, message):
        file = made.site("A").settings_file
        file.write_text(file.read_text().replace('data = ""', f'data = "{path}"'))
        assert message in said(made.site("A").folder, "data", "problem")

    def test_a_target_that_could_not_be_read_is_found_at_once(self, made):
        give_data(made, T=patients("T", sex=None, age=None))
        text = said(made.site("T").folder, "data", "problem")
        assert "every column at the target, but 'age', 'sex' has none" in text
        assert not made.site("T").description.exists()

    def test_a_split_that_leaves_one_class_is_found_at_once(self, made):
        give_data(made)
        file = made.site("T").settings_file
        file.write_text(file.read_text().replace("n-target = 0", "n-target = 1"))
        assert "two classes at the target" in said(made.site("T").folder, "data", "problem")

    def test_a_split_below_the_floors_is_found_at_once(self, made):
        give_data(made)
        file = made.site("T").settings_file
        file.write_text(file.read_text().replace("n-target = 0", "n-target = 2"))
        assert "at least 4 rows to train on" in said(made.site("T").folder, "data", "problem")

    def test_everything_that_is_wrong_with_a_file_is_told_at_once(self, made):
        comma = ["61,5"] * 40
        change = {
            "age": comma,
            "weight": comma,
            "dose": ["1"] * 39 + ["x"],
            "note": map(str, range(40)),
        }
        table = patients("A", **change).assign(note=[f"patient {n}" for n in range(40)])
        give_data(made, A=table.drop(columns="label"))
        found = [f.said for f in check(made.site("A").folder).findings if f.state == "problem"]
        assert len(found) == 4, "what one setting puts right is told of once"
        for part in ("column 'label'", "'61,5'", "the same in 'weight'.", "'x'", "free text"):
            assert any(part in text for text in found), part

    def test_a_decimal_comma_is_the_sites_own_affair(self, made):
        give_data(made, A=patients("A", age=["61,5", "70,25"] * 20))
        assert 'line of site.toml: `decimal = ","`.' in said(
            made.site("A").folder, "data", "problem"
        )
        add_settings(made.site("A"), 'decimal = ","')
        assert check(made.site("A").folder).ok
        assert "decimal" not in str(made.plan().agreed("A"))
        for name in ("B", "T"):
            check(made.site(name).folder)
        assert check_of(made, "agreement").state == "ok"

    def test_a_table_without_the_label_is_a_problem(self, made):
        give_data(made, A=patients("A").drop(columns="label"))
        assert "column 'label'" in said(made.site("A").folder, "data", "problem")

    def test_a_key_that_others_can_read_is_a_problem(self, made):
        made.site("A").key.private.chmod(0o644)
        assert "chmod 600" in said(made.site("A").folder, "node key", "problem")

    @pytest.mark.parametrize(("path", "mode"), [("", 0o720), ("site.toml", 0o646)])
    def test_what_others_could_write_to_is_a_problem(self, made, path, mode):
        (made.site("A").folder / path).chmod(mode)
        assert f"sites/A/{path}"[6:].rstrip("/") in said(made.site("A").folder, "modes", "problem")

    def test_keys_that_do_not_fit_are_a_problem(self, made):
        key = made.site("B").key.public.read_bytes()
        made.site("A").key.public.write_bytes(key)
        assert "another key" in said(made.site("A").folder, "node key", "problem")

    def test_a_missing_authority_is_a_problem(self, made):
        made.site("A").ca.unlink()
        assert "ca.crt" in said(made.site("A").folder, "certificates", "problem")

    def test_the_link_is_asked_with_the_sites_own_certificate(self, made, monkeypatch):
        monkeypatch.undo()
        with answering(made.certificates) as port:
            file = made.site("A").settings_file
            file.write_text(file.read_text().replace("localhost:8000", f"localhost:{port}"))
            assert "answers" in said(made.site("A").folder, "link", "ok")
        assert "need not run before this site's node" in said(made.site("A").folder, "link", "note")
        assert check(made.site("A").folder).findings[-1].what == "link"


class TestAtTheCoordinator:
    def test_with_everybodys_word_the_schema_goes_into_the_app(self, ready):
        assert check(ready.folder).ok
        schema = Schema.from_json(ready.schema.read_text())
        assert dict(schema.kinds) == {"age": "numeric", "sex": "categorical"}
        assert schema.class_names == ("no", "yes")

    def test_missing_descriptions_are_named(self, made):
        give_data(made)
        check(made.site("A").folder)
        assert "those of B, T are missing" in said(made.folder, "agreement", "problem")
        assert "send its description.json" in said(made.folder, "B: data", "problem")
        assert "40 rows, 40 labelled" in said(made.folder, "A: data", "ok")
        assert not made.schema.exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"age": "old"}, "'age': text at 'A' ('old'), numbers at 'B', numbers at 'T'"),
            ({"label": [0, 1] * 20}, "site 'A' has numbers ('0', '1')"),
            ({"label": ["No", "Yes"] * 20}, "A has 'No', 'Yes'"),
            ({"dose": 1.5}, "site 'B' lacks 'dose'"),
        ],
    )
    def test_sites_that_disagree_are_listed(self, made, change, message):
        give_data(made, A=patients("A", **change))
        for name in made.plan().sites:
            check(made.site(name).folder)
        assert message in said(made.folder, "agreement", "problem")
        assert not made.schema.exists()

    def test_all_disagreements_come_in_one_answer_with_names_to_paste_back(self, made):
        """Columns, types, empty columns, label codes, and categories that differ in case."""
        change = {"Age": [*range(39), 0], "Dose": "much", "label": ["No", "Yes"] * 20}
        give_data(
            made,
            A=patients("A", **change),
            B=patients("B", Dose=1, Age=[*range(39), 0], sex=None, thal=["x", "Y"] * 20),
            T=patients("T", Dose=2, Age=[None] * 39 + [1], thal=["x", "y"] * 20),
        )
        for name in ("A", "B", "T"):
            assert check(made.site(name).folder, counts=False).ok
        found = [f for f in check(made.folder).findings if f.what == "agreement"]
        problems = [f.said for f in found if f.state == "problem"]
        assert len(problems) == 4
        for part in (
            "site 'A' lacks 'thal'",
            "column 'Dose': text at 'A' ('much'), numbers at 'B', numbers at 'T'",
            "A has 'No', 'Yes'",
            "column 'sex' at every site, but B has none",
        ):
            assert any(part in problem for problem in problems), part
        change = f"fedbridge deploy change {made.folder}"
        ways = [f.command for f in found if f.command.startswith("fedbridge")]
        assert ways == [f"{change} --impute sex,thal", f"{change} --columns age,Age"]
        assert not made.schema.exists()

    def test_an_empty_column_of_categories_is_found_before_the_run(self, made):
        """Its source would fail to load; of numbers it says nothing and is no problem."""
        give_data(made, A=patients("A", sex=None), B=patients("B", age=None))
        for name in made.plan().sites:
            assert check(made.site(name).folder).ok
        assert "no values in 'sex'" in said(made.site("A").folder, "data", "note")
        text = said(made.folder, "agreement", "problem")
        assert "column 'sex' at every site, but A has none" in text
        assert "age" not in text
        assert main(["deploy", "change", str(made.folder), "--columns", "age"]) == 0
        assert check_of(made, "agreement").state == "ok", "no site has to send anything"

    def test_categories_that_one_site_lacks_are_a_note(self, made):
        give_data(made, A=patients("A", sex="f"))
        for name in made.plan().sites:
            check(made.site(name).folder)
        assert "site 'A' has no 'm'" in said(made.folder, "agreement", "note")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"site": "B"}, "put it into sites/B/"),
            ({"role": "target"}, "it has another role: let it type the command below"),
            ({"versions": {"python": "3.8", "flwr": "1.0"}}, "flwr 1.0 (here 1."),
            ({"format": 3}, "cannot be used"),
            ({"labels": ["no", "\x1b[2Jyes"]}, "that can be shown"),
        ],
    )
    def test_a_description_that_does_not_fit_is_a_problem(self, ready, change, message):
        file = ready.site("A").description
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        assert message in said(ready.folder, "A: data", "problem")

    def test_private_keys_that_are_still_here_are_a_note(self, ready):
        assert "delete it" in said(ready.folder, "A: key", "note")
        ready.site("A").key.private.unlink()
        assert said(ready.folder, "A: key", "ok")

    def test_a_missing_public_key_is_a_problem(self, ready):
        ready.site("A").key.public.unlink()
        assert "node.pub" in said(ready.folder, "A: key", "problem")

    def test_a_certificate_for_another_host_is_a_problem(self, ready):
        content = plan(host="link.example.org").to_json()
        ready.plan_file.write_text(content)
        assert "link.example.org" in said(ready.folder, "certificates", "problem")

    def test_an_expired_certificate_is_a_problem(self, ready, monkeypatch):
        later = datetime.now(UTC) + timedelta(days=400)
        clock = SimpleNamespace(now=lambda _: later)
        monkeypatch.setattr(pki, "datetime", clock)
        assert "expired" in said(ready.folder, "certificates", "problem")

    def test_a_certificate_that_ends_soon_is_a_warning(self, ready):
        renew_server_certificate(ready.coordinator, ["localhost"], days=29)
        assert "the link at localhost" in said(ready.folder, "certificates", "warning")
        assert "authority" in said(ready.folder, "certificates", "ok")

    def test_an_authority_that_ends_soon_is_a_warning_here_and_at_sites(self, tmp_path):
        made = deployment(tmp_path / "dep")
        write = make_certificates(tmp_path / "short", ["localhost"], days=29)
        for file in ("ca.crt", "ca.key", "server.pem", "server.key"):
            (write.folder / file).replace(made.coordinator / file)
        made.site("A").ca.write_bytes(made.certificates.ca.read_bytes())
        assert "authority" in said(made.folder, "certificates", "warning")
        assert "authority" in said(made.site("A").folder, "certificates", "warning")

    def test_a_new_authority_that_waits_for_the_sites_is_a_warning(self, ready):
        assert renew(ready, 365, authority=True)
        text = said(ready.folder, "certificates", "warning")
        assert "give every site the new ca.crt" in text
        assert check(ready.folder).ok
        assert not renew(ready, 365, authority=False)
        assert not said(ready.folder, "certificates", "warning")

    @pytest.mark.parametrize(
        ("path", "mode"),
        [
            ("coordinator", 0o770),
            ("app/pyproject.toml", 0o664),
            ("app/fedbridge_app/client_app.py", 0o606),
            ("sites/A/node.pub", 0o666),
            (".", 0o777),
        ],
    )
    def test_what_others_could_write_to_is_a_problem(self, ready, path, mode):
        assert said(ready.folder, "modes", "ok")
        (ready.folder / path).chmod(mode)
        text = said(ready.folder, "modes", "problem")
        assert path.strip(".") in text
        assert "chmod -R go-w" in text

    def test_an_authoritys_key_that_others_can_read_is_a_problem(self, ready):
        ready.certificates.ca_key.chmod(0o644)
        assert "ca.key has mode 644" in said(ready.folder, "certificates", "problem")

    def test_another_authority_is_a_problem(self, ready, tmp_path):
        other = make_certificates(tmp_path / "other", ["localhost"])
        ready.certificates.ca.write_bytes(other.ca.read_bytes())
        assert "another authority" in said(ready.folder, "certificates", "problem")

    def test_a_node_that_is_away_is_a_problem(self, ready):
        Known.nodes_of_link = tuple(
            replace(node, online=node.name != "B") for node in Known.nodes_of_link
        )
        assert "not online" in said(ready.folder, "B: node", "problem")
        assert "online" in said(ready.folder, "A: node", "ok")

    def test_a_key_that_is_not_registered_is_a_problem(self, ready, tmp_path):
        other = read_public_key(make_node_key(tmp_path, "other").public)
        first, *rest = Known.nodes_of_link
        Known.nodes_of_link = (replace(first, public_key=other), *rest)
        assert "deploy register" in said(ready.folder, "A: node", "problem")

    def test_a_second_key_under_a_sites_name_is_named(self, ready, tmp_path):
        other = read_public_key(make_node_key(tmp_path, "other").public)
        Known.nodes_of_link += (Node(77, "T", other, online=True, activated=""),)
        text = said(ready.folder, "T: node", "problem")
        assert "another key" in text
        assert "flwr supernode unregister 77 fedbridge" in text
        assert "registered and online" in said(ready.folder, "T: node", "ok")
        assert not check(ready.folder).ok

    def test_without_a_link_nobody_is_asked_for_nodes(self, ready, monkeypatch):
        monkeypatch.undo()
        made = deployment(ready.folder.parent / "other", port=1)
        found = {finding.what for finding in check(made.folder).findings}
        assert "link" in found
        assert "A: node" not in found
