"""Who may speak for whom."""

import pytest
from flwr.app import ConfigRecord, Message
from pretend import Node, PretendGrid, keyed, nodes_of, run_over_pretended_flower
from small import blobs

from fedbridge.base.errors import OptionError
from fedbridge.flower import FedBridgeStrategy
from fedbridge.flower.membership import HELLO_SECONDS, Membership, MembershipError
from fedbridge.flower.pki import (
    KeyFileError,
    make_node_key,
    read_public_key,
    site_keys,
)
from fedbridge.flower.transport import Transport

QUICK = {"model": "linear", "lr": 0.1, "batch_size": 8}


def membership_of(nodes, *, keys=None, sources=("site 0", "site 1", "site 2")):
    return Membership(Transport(PretendGrid(nodes), 5.0), "target", sources, keys)


def another_key(node, tmp_path):
    """Another node of the same name and app, whose key lies in nobody's folder."""
    key = read_public_key(make_node_key(tmp_path / "elsewhere", node.name).public)
    return Node(node.name, node.app, node.config, key=key)


def test_every_site_is_known_by_its_own_word(tmp_path):
    membership = membership_of(nodes_of(blobs(), tmp_path))
    membership.gather(wait=1)
    assert set(membership.nodes) == {"target", "site 0", "site 1", "site 2"}
    task = membership.task("t")
    assert (len(task.target), len(task.test), len(task.sources[0])) == (12, 60, 40)
    assert task.input_shape == (2,)


def test_a_node_with_another_sites_key_cannot_claim_the_targets_role(tmp_path):
    (target, *sources), folder = keyed(blobs(), tmp_path)
    target.key, sources[0].key = sources[0].key, b"gone"
    membership = membership_of([target, *sources], keys=site_keys(folder))
    with pytest.raises(MembershipError, match=r"key is that of 'site-0.*', but it claims to be"):
        membership.gather(wait=0.1)


def test_a_second_key_under_the_targets_name_is_refused_named_and_never_asked(tmp_path):
    (target, *sources), folder = keyed(blobs(), tmp_path)
    impostor = another_key(target, tmp_path)
    impostor.spoil = lambda question, answer: pytest.fail("it was asked")
    membership = membership_of([impostor, target, *sources], keys=site_keys(folder))
    membership.gather(wait=1)
    assert membership.transport.grid.nodes[membership.nodes["target"]] is target
    (note,) = membership.notes
    assert note.startswith("Refused node 10, registered as 'target': its key is none of those")


def test_the_run_names_the_second_key_and_goes_on(tmp_path):
    task = blobs()
    nodes, folder = keyed(task, tmp_path)
    grid = PretendGrid([another_key(nodes[0], tmp_path), *nodes])
    strategy, _ = run_over_pretended_flower(
        task, "fedavg", 1, tmp_path, grid, secure=True, keys=folder, **QUICK
    )
    (line,) = strategy.result.history
    assert line["failures"] == {}
    assert any("registered as 'target'" in note for note in line["notes"])


def test_without_its_own_key_the_target_is_not_there(tmp_path):
    """Also when nobody but the impostor is."""
    (target, *sources), folder = keyed(blobs(), tmp_path)
    membership = membership_of([another_key(target, tmp_path), *sources], keys=site_keys(folder))
    with pytest.raises(MembershipError, match="its key is none of those"):
        membership.gather(wait=0.1)


def test_the_name_that_a_link_has_of_a_key_is_made_printable(tmp_path):
    (target, *sources), folder = keyed(blobs(), tmp_path)
    stranger = another_key(target, tmp_path)
    stranger.name = "\x1b[2J\x1b]0;owned\x07"
    membership = membership_of([stranger, target, *sources], keys=site_keys(folder))
    membership.gather(wait=1)
    assert membership.notes[0].isprintable()


def test_a_folder_without_keys_believes_nobody(tmp_path):
    with pytest.raises(KeyFileError, match=r"NAME/node\.pub"):
        site_keys(tmp_path)


def test_a_source_cannot_be_the_target_and_the_target_no_source(tmp_path):
    def lie(question, answer):
        answer.content["site"]["role"] = "target"
        return answer

    nodes = nodes_of(blobs(), tmp_path)
    nodes[2].spoil = lie
    membership = membership_of(nodes)
    membership.gather(wait=0.1)
    assert "site 1" not in membership.nodes
    assert "claims to be a target" in " ".join(membership.notes)


def test_strangers_are_refused(tmp_path):
    other = nodes_of(blobs(sources=4), tmp_path)
    membership = membership_of(other)
    membership.gather(wait=0.1)
    assert "site 3" not in membership.nodes
    assert "no site of this federation" in " ".join(membership.notes)


def test_sites_with_other_shapes_do_not_make_a_federation(tmp_path):
    def grow(question, answer):
        answer.content["site"]["input-shape"] = [3]
        return answer

    nodes = nodes_of(blobs(), tmp_path)
    nodes[2].spoil = grow
    membership = membership_of(nodes)
    membership.gather(wait=0.1)
    with pytest.raises(MembershipError, match="alike"):
        membership.task("t")


@pytest.mark.parametrize(
    "spoilt",
    [
        {"site": ""},
        {"site": 7},
        {"site": "x" * 1000},
        {"role": "boss"},
        {"input-shape": ["a"]},
        {"input-shape": [-1]},
        {"input-shape": [10**5, 10**5]},
        {"class-names": ["a", "b", "\x1b]0;owned\x07"]},
        {"class-names": ["a"] * 3000},
    ],
    ids=str,
)
def test_nonsense_is_refused(spoilt, tmp_path):
    def nonsense(question, answer):
        answer.content["site"] = ConfigRecord({**answer.content["site"], **spoilt})
        return answer

    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = nonsense
    membership = membership_of(nodes)
    membership.gather(wait=0.1)
    assert len(membership.nodes) == 3


def test_a_federation_without_its_target_does_not_start(tmp_path):
    with pytest.raises(MembershipError, match=r"target.*within 0.1 seconds"):
        membership_of(nodes_of(blobs(), tmp_path)[1:]).gather(wait=0.1)


def test_whoever_comes_back_must_bring_the_same_data(tmp_path):
    grid = PretendGrid(nodes_of(blobs(), tmp_path))
    membership = Membership(Transport(grid, 5.0), "target", None)
    membership.gather(wait=1)
    grid.leave("site 0")
    grid.join(nodes_of(blobs(rows=50), tmp_path)[1])
    membership.refresh()
    assert "site 0" not in membership.nodes
    assert "other data than before" in " ".join(membership.notes)


def test_a_restarted_node_takes_over_when_its_predecessor_is_silent(tmp_path):
    grid = PretendGrid(nodes_of(blobs(), tmp_path))
    membership = Membership(Transport(grid, 5.0), "target", None)
    membership.gather(wait=1)
    before = membership.nodes["target"]
    again = grid.join(nodes_of(blobs(), tmp_path)[0])
    membership.refresh()
    assert membership.nodes["target"] == before
    membership.lose("target")
    assert membership.nodes["target"] == again


def test_a_slow_node_keeps_its_place_unless_another_has_come(tmp_path):
    grid = PretendGrid(nodes_of(blobs(), tmp_path))
    membership = Membership(Transport(grid, 5.0), "target", None)
    membership.gather(wait=1)
    before = dict(membership.nodes)
    membership.lose("site 0", silent=True)
    assert membership.nodes == before
    again = grid.join(nodes_of(blobs(), tmp_path)[1])
    membership.refresh()
    membership.lose("site 0", silent=True)
    assert membership.nodes["site 0"] == again


def test_a_silent_node_is_not_waited_for_for_ever(tmp_path):
    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = lambda question, answer: None
    grid = PretendGrid(nodes)
    membership = Membership(Transport(grid, 0.1), "target", ("site 0", "site 1"))
    membership.gather(wait=0.3)
    assert "site 0" not in membership.nodes


def test_very_many_nodes_are_given_time_to_answer_in_turn(tmp_path, monkeypatch):
    """Asked again too early, they would have the first question to answer before the second."""
    given = []
    plain = Transport.ask

    def ask(self, *about, at_most, **more):
        given.append(at_most)
        return plain(self, *about, at_most=at_most, **more)

    monkeypatch.setattr(Transport, "ask", ask)
    membership_of(nodes_of(blobs(), tmp_path)).gather(5.0)
    assert given == [HELLO_SECONDS + 4]


def test_a_target_that_nobody_named_is_the_site_that_says_so(tmp_path):
    strategy = FedBridgeStrategy(rule="auto", wait=0.2, **QUICK)
    strategy.start(PretendGrid(reversed(nodes_of(blobs(), tmp_path))), num_rounds=1)
    assert strategy.result.summary["target"] == "target"
    assert strategy.result.summary["sources"] == ["site 0", "site 1", "site 2"]


def test_a_second_site_that_says_so_is_refused(tmp_path):
    def lie(question, answer):
        answer.content["site"]["role"] = "target"
        return answer

    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = lie
    membership = Membership(Transport(PretendGrid(nodes), 5.0), None, None)
    membership.gather(wait=0.2, least=4)
    assert (membership.target, set(membership.nodes)) == ("target", {"target", "site 1", "site 2"})


@pytest.mark.parametrize("given", [{"target": "T"}, {"keys": "sites"}])
def test_where_roles_are_pinned_the_target_and_the_keys_must_be_named(given):
    with pytest.raises(OptionError, match="named"):
        FedBridgeStrategy("auto", secure=True, **given)


def test_a_target_without_test_rows_does_not_keep_others_from_being_it(tmp_path):
    def boast(question, answer):
        answer.content["site"]["role"] = "target"
        return answer

    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = boast
    membership = Membership(
        Transport(PretendGrid([nodes[1], nodes[0], *nodes[2:]]), 5.0), None, None
    )
    membership.gather(wait=0.2, least=4)
    assert membership.target == "target"


def test_a_site_of_another_shape_that_comes_late_is_refused_and_the_run_goes_on(tmp_path):
    def other(question, answer):
        if question.metadata.message_type == "query":
            answer.content["site"]["input-shape"] = [7]
        return answer

    def join(question, answer):
        if question.metadata.message_type == "train" and late not in grid.nodes.values():
            grid.join(late)
        return answer

    first, second, late, *rest = nodes_of(blobs(), tmp_path)
    late.spoil, second.spoil = other, join
    grid = PretendGrid([first, second, *rest])
    strategy, _ = run_over_pretended_flower(blobs(), "fedavg", 3, tmp_path, grid, **QUICK)
    lines = strategy.result.history
    assert [set(line["failures"]) for line in lines] == [{"site 1"}] * 3
    assert any("unlike the others" in note for line in lines for note in line["notes"])


def test_a_registered_node_that_was_refused_is_asked_again_when_it_was_restarted(tmp_path):
    """It keeps its number, but not the mistake for which it was refused."""

    def nameless(question, answer):
        del answer.content["site"]
        return answer

    nodes, folder = keyed(blobs(), tmp_path)
    nodes[1].spoil = nameless
    membership = membership_of(nodes, keys=site_keys(folder))
    membership.gather(wait=0.1)
    nodes[1].spoil = lambda question, answer: answer
    membership.refresh()
    assert "site 0" not in membership.nodes
    nodes[1].activated = "later"
    membership.refresh()
    assert "site 0" in membership.nodes


def test_a_name_that_no_terminal_should_see_is_refused(tmp_path):
    def shout(question, answer):
        answer.content["site"]["site"] = "\x1b[31mred"
        return answer

    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = shout
    membership = Membership(Transport(PretendGrid(nodes), 5.0), "target", None)
    membership.gather(wait=0.2, least=4)
    assert set(membership.nodes) == {"target", "site 1", "site 2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "int7"}, "codec"),
        ({"timeout": -1}, "timeout"),
        ({"wait": "long"}, "wait"),
        ({"norm_bound": 0}, "norm_bound"),
        ({"norm_ratio": 0.5}, "norm_ratio"),
        ({"lr": -1.0}, "learning rate"),
        ({"lrr": 0.1}, "Did you mean 'lr'"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anybody_is_asked(options, message):
    with pytest.raises(OptionError, match=message):
        FedBridgeStrategy("fedavg", target="T", **options)


def test_answers_are_matched_to_questions_not_to_senders(tmp_path):
    """The answer for a dead node comes from the link."""
    from flwr.app import Error

    def dead(question, answer):
        reply = Message(Error(code=5, reason="Node unavailable"), reply_to=question)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = lambda q, a: a if q.metadata.message_type == "query" else dead(q, a)
    strategy, _ = run_over_pretended_flower(
        blobs(), "fedavg", 1, tmp_path, PretendGrid(nodes), **QUICK
    )
    (line,) = strategy.result.history
    assert line["failures"] == {"site 0": "Node unavailable"}
