"""A small part of the fuzzers (``make fuzz`` runs more): every kind, a few cases each."""

import os

import pytest
import torch
from fuzz import harness, world
from fuzz.harness import Answer, Case, judge, rng_of, tried
from fuzz.kinds import KINDS

SLOW = ("kills", "names", "replies", "requests")


@pytest.fixture(scope="module", autouse=True)
def _world():
    before, threads = dict(os.environ), torch.get_num_threads()
    made = world.world()
    yield
    world.end(made.root)
    world.world.cache_clear()
    os.environ.clear()
    os.environ.update(before)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_refused_in_a_sentence_or_answered(kind, tmp_path):
    for number in range(1 if kind in SLOW else 3):
        case, answer, wrong = tried(KINDS[kind].kind, rng_of(kind, 0, number), tmp_path / "case")
        assert not wrong, (f"{kind} --seed 0 --case {number}", case.what, answer.err)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(None, "", ""), "hung"),
        (Answer(1, "", "fedbridge: internal error: KeyError: 'x'"), "raised"),
        (Answer(-9, "", ""), "ended with -9"),
        (Answer(2, "", "no"), "without one error"),
        (Answer(0, "\x1b[2J", ""), "wrote '\\x1b' to stdout"),
        (Answer(0, "", "", megabytes=1e4), "took 10000 MB"),
    ],
)
def test_the_judge_sees(answer, said):
    (wrong,) = judge(Case("", ["run"]), answer, {}, {})
    assert said in wrong


def test_the_judge_sees_what_was_left_or_changed():
    before, after = {"a": "1", "b": "1"}, {"a": "2", "c": "1", "out/.x.partial": "1"}
    wrong = judge(Case("", ["run"], writes=("out",)), Answer(0, "", ""), before, after)
    assert wrong == ["changed a", "changed b", "left c", "left out/.x.partial"]


def test_a_case_is_the_same_again(tmp_path):
    found = [tried(KINDS["tables"].kind, rng_of("tables", 5, 1), tmp_path / "x") for _ in range(2)]
    assert found[0][0].what == found[1][0].what
    assert found[0][1].status == found[1][1].status


def test_what_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "SECONDS", 0.2)

    def endless(rng, place):
        return Case("waits for a pipe", lambda: os.read(os.pipe()[0], 1))

    _, _, (wrong,) = tried(endless, rng_of("x", 0, 0), tmp_path / "case")
    assert "hung" in wrong
