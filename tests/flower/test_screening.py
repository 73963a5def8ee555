"""Replies from outside: honest ones pass, whatever else is named in one short sentence."""

import math
from dataclasses import fields, replace

import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.base.errors import OptionError
from fedbridge.federation.lengths import length_of, screen_lengths
from fedbridge.flower.messages import ReplyError, read_result, train_reply
from fedbridge.flower.privacy import LocalPrivacy, release
from fedbridge.flower.screening import (
    Expected,
    screen_update,
)
from fedbridge.flower.site import Delivery
from fedbridge.training.job import ClientResult, Job, LocalPlan, Outcome

SIZE, BLOCKS, SKETCH, BATCHES = 6, 2, 4, 3
BUFFERS = {
    "norm.running_mean": (torch.float32, (2,)),
    "norm.running_var": (torch.float32, (2,)),
    "norm.num_batches_tracked": (torch.int64, ()),
}
EXPECTED = Expected(
    SIZE,
    BLOCKS,
    BUFFERS,
    {"entropy": (torch.float32, ())},
    "sketch",
    SKETCH,
    samples=20,
    steps=5,
    lr=0.1,
    batches=BATCHES,
)
UNSURE = Expected(SIZE, BLOCKS, noise="size")
MEGABYTE = "x" * 10**6
FIELDS = [field.name for field in fields(Outcome)]


def buffers(**changed):
    fine = {
        "norm.running_mean": torch.tensor([-1.0, 2.0]),
        "norm.running_var": torch.tensor([0.0, 2.0]),
        "norm.num_batches_tracked": torch.tensor(7),
    }
    return fine | {f"norm.{name}": value for name, value in changed.items()}


def report(**changed):
    fine = {
        "samples": 20,
        "steps": 5,
        "lr": 0.1,
        "loss": 0.7,
        "buffers": buffers(),
        "noise": torch.tensor([0.0, 2.0], dtype=torch.float64),
        "batches": BATCHES,
        "sketches": torch.ones(BATCHES - 1, BLOCKS, 2, SKETCH, dtype=torch.float64),
        "told": {"entropy": torch.tensor(0.5)},
        "seconds": 0.1,
    }
    return Outcome(**(fine | changed))


def plain(**changed):
    return Outcome(**{"samples": 20, "steps": 5, "lr": 0.1, **changed})


def screen(vector, outcome, expected, **bound):
    return screen_update(ClientResult(outcome, vector), expected, **bound)


def test_an_honest_reply_passes():
    assert screen(torch.ones(SIZE), report(), EXPECTED) is None
    assert screen(torch.ones(SIZE), plain(), UNSURE) is None


@pytest.mark.parametrize("kind", ["train", "probe"])
@pytest.mark.parametrize("noise", ["none", "size", "sketch"])
@pytest.mark.parametrize("private", [False, True])
def test_what_our_own_training_sends_passes(kind, noise, private):
    on = small.federation(model=small.Normed())
    plan = LocalPlan(lr=0.1, batch_size=8, epochs=2, noise=noise)
    job = Job(1, plan, seed=0, kind=kind, buffers=on.initial.buffers)
    outcomes, rows = on.do([job], [on.initial])
    works = [ClientResult(outcomes[0], rows[0].clone())]
    if private:
        works = release([job], works, LocalPrivacy(1.0, 1.0), on.blocks)
    expected = Expected.of_job(
        job,
        len(on.bench.sites[1]),
        on.blocks,
        buffers=on.initial.buffers,
        sketch_size=on.bench.sketch.size,
    )
    assert screen_update(works[0], expected) is None
    false = ClientResult(replace(works[0].outcome, steps=99), works[0].vector)
    assert screen_update(false, expected) is not None


HOSTILE_VECTORS = {
    "nan": torch.tensor([0.0, torch.nan, 0, 0, 0, 0]),
    "inf": torch.tensor([0.0, 0, 0, 0, 0, -torch.inf]),
    "double": torch.ones(SIZE, dtype=torch.float64),
    "whole numbers": torch.ones(SIZE, dtype=torch.int64),
    "complex": torch.ones(SIZE, dtype=torch.complex64),
    "one entry": torch.ones(1),
    "no dimension": torch.tensor(1.0),
    "a row": torch.ones(1, SIZE),
    "a column": torch.ones(SIZE, 1),
    "short": torch.ones(SIZE - 1),
    "empty": torch.ones(0),
    "sparse": torch.ones(SIZE).to_sparse(),
    "list": [1.0] * SIZE,
    "nothing": None,
    "text": MEGABYTE,
}

HOSTILE_REPORTS = {
    "samples 0": report(samples=0),
    "samples negative": report(samples=-20),
    "samples bool": report(samples=True),
    "samples float": report(samples=20.0),
    "samples nan": report(samples=math.nan),
    "samples text": report(samples="20"),
    "samples huge": report(samples=10**400),
    "samples tensor": report(samples=torch.tensor(20)),
    "samples of another": report(samples=21),
    "steps 0": report(steps=0),
    "steps bool": report(steps=True),
    "steps of another": report(steps=6),
    "lr 0": report(lr=0.0),
    "lr negative": report(lr=-0.1),
    "lr nan": report(lr=math.nan),
    "lr inf": report(lr=math.inf),
    "lr bool": report(lr=True),
    "lr huge": report(lr=10**400),
    "lr tiny": report(lr=1e-30),
    "lr of another": report(lr=0.05),
    "lr text": report(lr=MEGABYTE),
    "loss inf": report(loss=math.inf),
    "loss text": report(loss="low"),
    "loss none": report(loss=None),
    "seconds negative": report(seconds=-1.0),
    "seconds nan": report(seconds=math.nan),
    "seconds inf": report(seconds=math.inf),
    "batches negative": report(batches=-1),
    "batches bool": report(batches=True),
    "batches of another": report(batches=2),
    "noise negative": report(noise=torch.tensor([1.0, -1e-9])),
    "noise nan": report(noise=torch.tensor([1.0, torch.nan])),
    "noise broadcasts": report(noise=torch.tensor([1.0])),
    "noise no dimension": report(noise=torch.tensor(1.0)),
    "noise whole": report(noise=torch.tensor([1, 2])),
    "noise list": report(noise=[1.0, 2.0]),
    "sketches short": report(sketches=torch.ones(1, BLOCKS, 2, SKETCH)),
    "sketches broadcast": report(sketches=torch.ones(BATCHES - 1, 1, 2, SKETCH)),
    "sketches inf": report(sketches=torch.full((2, BLOCKS, 2, SKETCH), torch.inf)),
    "sketches many dimensions": report(sketches=torch.ones([1] * 60)),
    "sketches dict": report(sketches={}),
    "buffers list": report(buffers=[]),
    "buffers missing": report(buffers={}),
    "buffers another": report(buffers=buffers(weight=torch.ones(2))),
    "buffers long name": report(buffers={**buffers(), MEGABYTE: torch.ones(2)}),
    "buffers double": report(buffers=buffers(running_mean=torch.ones(2).double())),
    "buffers broadcast": report(buffers=buffers(running_mean=torch.ones(1))),
    "buffers nan": report(buffers=buffers(running_mean=torch.tensor([0.0, torch.nan]))),
    "buffers float count": report(buffers=buffers(num_batches_tracked=torch.tensor(1.0))),
    "variance negative": report(buffers=buffers(running_var=torch.tensor([1.0, -1.0]))),
    "count negative": report(buffers=buffers(num_batches_tracked=torch.tensor(-1))),
    "told missing": report(told={}),
    "told another": report(told={"entropy": torch.tensor(0.5), "rows": torch.ones(9)}),
    "told nan": report(told={"entropy": torch.tensor(torch.nan)}),
    "told none": report(told=None),
}


def assert_one_short_sentence(reason):
    assert isinstance(reason, str)
    assert reason.startswith("expected ")
    assert len(reason) < 250
    assert reason.isprintable()


@pytest.mark.parametrize("case", HOSTILE_VECTORS)
def test_a_hostile_vector_is_named(case):
    assert_one_short_sentence(screen(HOSTILE_VECTORS[case], report(), EXPECTED))


@pytest.mark.parametrize("case", HOSTILE_REPORTS)
def test_a_hostile_report_is_named(case):
    assert_one_short_sentence(screen(torch.ones(SIZE), HOSTILE_REPORTS[case], EXPECTED))


@pytest.mark.parametrize("name", ["num-examples", "steps", "lr", "loss", "batches", "seconds"])
def test_no_number_of_a_report_can_be_left_out(name):
    result = ClientResult(plain(), torch.ones(SIZE))
    reply = train_reply("A", "source", [Delivery(result, {"values": result.vector})], {})
    assert read_result(reply, 0, "float32", SIZE).outcome == result.outcome
    del reply["metrics-0"][name]
    with pytest.raises(ReplyError, match=f"incomplete: '{name}'"):
        read_result(reply, 0, "float32", SIZE)


@pytest.mark.parametrize(
    "strange", [{"lr": 1e-30}, {"lr": 1e30}, {"steps": 10**13}, {"samples": 10**400}]
)
def test_what_nobody_set_beforehand_still_has_bounds(strange):
    assert_one_short_sentence(screen(torch.ones(SIZE), plain(**strange), UNSURE))


def test_noise_that_nobody_asked_for_is_refused():
    quiet = Expected(SIZE, BLOCKS)
    noise, sketches = torch.ones(BLOCKS), torch.ones(1, BLOCKS, 2, 64)
    assert "no noise" in screen(torch.ones(SIZE), plain(noise=noise), quiet)
    assert "no sketches" in screen(
        torch.ones(SIZE), plain(noise=noise, sketches=sketches, batches=2), UNSURE
    )


@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=20)
        | st.binary(max_size=5)
        | st.lists(st.integers(), max_size=3)
        | st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
        max_size=6,
    ),
    st.sampled_from([EXPECTED, UNSURE]),
)
def test_no_report_makes_the_screening_itself_fail(strange, expected):
    for tried in (report(**strange), plain(**strange)):
        reason = screen(torch.ones(SIZE), tried, expected, norm_bound=5.0)
        if reason is not None:
            assert_one_short_sentence(reason)


def test_a_withheld_loss_passes():
    assert screen(torch.ones(SIZE), report(loss=math.nan), EXPECTED) is None


@pytest.mark.parametrize(("factor", "passes"), [(0.999, True), (1.001, False)])
def test_the_bound_of_the_length(factor, passes):
    vector = torch.full((SIZE,), factor * 2.0 / math.sqrt(SIZE))
    reason = screen(vector, report(), EXPECTED, norm_bound=2.0)
    assert (reason is None) == passes


def test_lengths_of_huge_finite_numbers_do_not_overflow():
    huge = torch.full((SIZE,), 3e38)
    assert length_of(huge) == pytest.approx(3e38 * math.sqrt(SIZE), rel=1e-6)
    assert "length 1e+06 at most" in screen(huge, report(), EXPECTED, norm_bound=1e6)


@pytest.mark.parametrize("bound", [0, -1, math.nan, math.inf, True, "1"])
def test_a_bound_is_a_number_above_zero(bound):
    with pytest.raises(OptionError, match="norm_bound"):
        screen(torch.ones(SIZE), report(), EXPECTED, norm_bound=bound)


def test_an_update_that_stands_out_is_named_and_no_other():
    lengths = {"A": 1.0, "B": 1.2, "C": 50.0, "D": 0.9}
    dropped = screen_lengths(lengths, multiple=10)
    assert dropped == {
        "C": "its update is 50 times as long as the median of the round, and 10 times is allowed"
    }


@pytest.mark.parametrize(
    "lengths",
    [
        {},
        {"A": 9.0},
        {"A": 0.0, "B": 9.0},
        {"A": 0.0, "B": 0.0, "C": 9.0},
        {"A": 1, "B": 2, "C": 9},
    ],
    ids=["nobody", "one", "two", "no length to compare with", "within"],
)
def test_nobody_is_dropped_without_a_majority_to_compare_with(lengths):
    assert screen_lengths(lengths, multiple=10) == {}


def test_a_multiple_below_one_would_drop_the_median_itself():
    with pytest.raises(OptionError, match="multiple"):
        screen_lengths({"A": 1.0}, multiple=0.5)
