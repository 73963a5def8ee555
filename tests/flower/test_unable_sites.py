"""A site that is there but cannot take part says so, at once and in words; nobody waits for it."""

import logging

import pytest
from flwr.app import Error, Message
from pretend import Node, PretendGrid, keyed, nodes_of, run_over_pretended_flower
from small import blobs

from fedbridge.base.errors import DataError, EmptyColumnError, FedbridgeError
from fedbridge.flower import client_app, membership
from fedbridge.flower.membership import Membership, MembershipError
from fedbridge.flower.messages import RequestError, told
from fedbridge.flower.pki import site_keys
from fedbridge.flower.transport import Transport
from fedbridge.report.model_card import model_card
from fedbridge.runs.record import read_run

QUICK = {"model": "linear", "lr": 0.1, "batch_size": 8}
REASON = "a column has no values at the site, whose own log says more"


def failing(name, role="source", error=None):
    """A node whose site knows its name but cannot load its rows."""

    def load(context):
        raise error or EmptyColumnError("Expected values in 'thal', but patient 17 has none.")

    return Node(name, client_app(load=load), {"site": name, "role": role})


def members(nodes, **keys):
    sources = ("site 0", "site 1", "site 2")
    return Membership(Transport(PretendGrid(nodes), 5.0), "target", sources, **keys)


@pytest.fixture
def nodes(tmp_path):
    """The largest source cannot load."""
    made = nodes_of(blobs(), tmp_path)
    made[1] = failing("site 0")
    return made


def test_nobody_waits_for_a_source_that_cannot_take_part(nodes, caplog):
    caplog.set_level(logging.INFO, "fedbridge")
    found = members(nodes)
    found.gather(wait=3600)
    assert set(found.nodes) == {"target", "site 1", "site 2"}
    assert found.notes == [f"site 0 cannot take part: {REASON}."]
    assert "site 0 cannot take part: a column has no values" in caplog.text


def test_every_round_the_summary_the_card_and_the_page_say_so(nodes, tmp_path):
    out = tmp_path / "run"
    grid = PretendGrid(nodes)
    strategy, _ = run_over_pretended_flower(blobs(), "fedavg", 2, tmp_path, grid, out=out, **QUICK)
    assert [line["failures"] for line in strategy.result.history] == [
        {"site 0": f"cannot take part: {REASON}"}
    ] * 2
    summary = strategy.result.summary
    assert summary["absent"] == {"site 0": f"cannot take part: {REASON}"}
    assert summary["n_sources"] == {"site 0": 0, "site 1": 40, "site 2": 40}
    card = model_card(read_run(out))
    assert "with 2 other sites" in card
    assert "Took no part: site 0 (cannot take part: a column has no values" in card
    assert "source, never took part" in (out / "report.html").read_text()
    assert "patient 17" not in str(grid.sent)


def test_the_targets_own_card_says_so_too(nodes, tmp_path, monkeypatch):
    """It hears who took no part, but not why."""
    monkeypatch.setenv("FEDBRIDGE_SITE", str(tmp_path))
    run_over_pretended_flower(blobs(), "auto", 2, tmp_path, PretendGrid(nodes), **QUICK)
    assert read_run(tmp_path / "run").summary["absent"] == {
        "site 0": "missing, as the coordinator says"
    }
    card = (tmp_path / "run" / "model-card.md").read_text()
    assert "with 2 other sites" in card
    assert "Took no part: site 0" in card
    assert "no values" not in card


def test_a_target_that_cannot_take_part_ends_the_run_at_once(nodes, tmp_path):
    nodes[0] = failing("target", "target")
    with pytest.raises(MembershipError, match=f"correct that at the site.*target.*{REASON}"):
        members(nodes).gather(wait=3600)


def refusing(question: Message, answer: Message) -> Message:
    """As a site's guard does, in Flower's words."""
    kind = "<class 'fedbridge.deploy.approval.NotApprovedError'>"
    return Message(Error(code=2, reason=f"{kind}:<'{REFUSAL}'>"), reply_to=question)


REFUSAL = "Expected a run that this site has approved, but it is another: look at it."


def test_a_source_that_refuses_the_run_is_named_at_once_and_waited_for_no_longer(tmp_path):
    nodes, folder = keyed(blobs(), tmp_path)
    nodes[1].spoil = refusing
    found = members(nodes, keys=site_keys(folder))
    found.gather(wait=3600)
    assert set(found.nodes) == {"target", "site 1", "site 2"}
    assert found.notes == [f"site 0 cannot take part: {REFUSAL}"]
    nodes[1].spoil, nodes[1].activated = (lambda question, answer: answer), "later"
    found.refresh()
    assert "site 0" in found.nodes


def test_so_is_one_whose_answer_does_not_fit_this_federation(tmp_path):
    nodes, folder = keyed(blobs(), tmp_path)

    def lie(question: Message, answer: Message) -> Message:
        answer.content["site"]["role"] = "target"
        return answer

    nodes[2].spoil = lie
    found = members(nodes, keys=site_keys(folder))
    found.gather(wait=3600)
    assert found.notes == [
        "site 1 cannot take part: 'site 1' claims to be a target, but is the source."
    ]


def test_a_target_that_refuses_the_run_ends_it_at_once(tmp_path):
    nodes, folder = keyed(blobs(), tmp_path)
    nodes[0].spoil = refusing
    with pytest.raises(MembershipError, match="target cannot take part: Expected a run that this"):
        members(nodes, keys=site_keys(folder)).gather(wait=3600)


@pytest.mark.parametrize(
    ("method", "what"), [("fedda", "not train in round 2"), ("auto", "has not for 3 rounds")]
)
def test_a_target_that_has_had_enough_ends_the_run(method, what, tmp_path):
    """Where it only chooses it may be a moment's trouble, which other refusals do not end."""
    nodes = nodes_of(blobs(), tmp_path)
    nodes[0].config["most-rounds"] = 1
    with pytest.raises(FedbridgeError, match=rf"{what}.*most-rounds"):
        run_over_pretended_flower(blobs(), method, 9, tmp_path, PretendGrid(nodes), **QUICK)


def test_a_site_that_was_corrected_takes_part_again(nodes, tmp_path, monkeypatch):
    found = members(nodes)
    found.gather(wait=1)
    grid, (well, *_) = found.transport.grid, nodes_of(blobs(), tmp_path)[1:]
    asked = len(grid.asked)
    found.refresh()
    assert len(grid.asked) == asked, "it is left alone for a while"
    number = next(number for number, node in grid.nodes.items() if node.name == "site 0")
    grid.nodes[number] = Node("site 0", well.app, well.config, activated="later")
    found.refresh()
    assert "site 0" in found.nodes
    assert "site 0 is back." in found.notes
    assert found.unable == {}


def test_a_site_that_came_late_counts_with_its_rows(tmp_path):
    late = nodes_of(blobs(), tmp_path)
    found = members([late[0], late[2], late[3]])
    found.gather(wait=0.1)
    task = found.task("t")
    assert [len(site) for site in task.sources] == [0, 40, 40]
    found.transport.grid.join(late[1])
    found.refresh()
    assert [len(site) for site in task.sources] == [40, 40, 40]


def test_who_is_missing_is_said_while_others_wait(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(membership, "WORD_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "fedbridge")
    here = nodes_of(blobs(), tmp_path)
    members([here[0], here[1]]).gather(wait=1)
    first, second, *_ = [record.getMessage() for record in caplog.records]
    assert first == "here: nobody yet; missing: target, site 0, site 1, site 2 (0 of 1 seconds)"
    assert second.startswith("here: target, site 0; missing: site 1, site 2 (")


def test_who_has_not_answered_in_a_round_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("fedbridge.flower.transport.WORD_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "fedbridge")
    nodes = nodes_of(blobs(), tmp_path)

    def silent(question: Message, answer: Message) -> Message | None:
        return None if question.metadata.message_type == "train" else answer

    nodes[2].spoil = silent
    run_over_pretended_flower(
        blobs(), "fedavg", 1, tmp_path, PretendGrid(nodes), timeout=0.5, **QUICK
    )
    assert "round 1: no answer yet from site 1 (" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EmptyColumnError("row 3"), "a column has no values"),
        (DataError("row 3"), "the data cannot be used as they are"),
        (PermissionError(13, "row 3"), "a file or folder cannot be read or written"),
        (MemoryError("row 3"), "the memory is not enough"),
        (ZeroDivisionError("row 3"), "ZeroDivisionError"),
    ],
)
def test_kinds_of_errors_are_said_in_words_that_quote_nothing(error, words):
    assert told(error) == f"{words} at the site, whose own log says more"


def test_what_the_coordinator_itself_asked_is_told_whole():
    assert told(RequestError("too few rows")) == "too few rows"


def test_the_site_itself_reads_the_whole_sentence(nodes, caplog):
    members(nodes).gather(wait=1)
    assert "this site cannot take part: Expected values in 'thal'" in caplog.text
    assert "Traceback" not in caplog.text
