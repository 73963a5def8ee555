"""Batches on their way to a model: what is random depends on seed and row, and on nothing else."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from small import blobs, federation, same_but_for_seconds, same_model
from torch.nn import functional

from fedbridge.base.errors import DataError
from fedbridge.data.load import load_task
from fedbridge.data.preparing import (
    AddNoise,
    Augment,
    InTurn,
    PixelsToUnit,
    RowChance,
    ShiftAndFlip,
    is_redrawn,
    prepare_from_record,
    prepare_to_record,
    prepared,
    row_seeds,
)
from fedbridge.methods.cross_validation import deal_folds, held_out_outputs
from fedbridge.runs.record import TESTED_FILE, read_tested
from fedbridge.training.objective import Supervised
from fedbridge.workflows.run import run


def test_noise_is_drawn_anew_and_decided_by_the_generator():
    x, generator = torch.zeros(1000, 4), torch.Generator().manual_seed(0)
    first, second = AddNoise(0.5)(x, generator), AddNoise(0.5)(x, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, AddNoise(0.5)(x, torch.Generator().manual_seed(0)))
    assert first.std().item() == pytest.approx(0.5, rel=0.05)


class TestShiftAndFlip:
    """Against a plain loop: pad, cut out, mirror, image by image."""

    x = torch.rand(64, 3, 12, 10)
    chance = RowChance(row_seeds(3, torch.arange(64)), training=True)

    def test_every_image_is_a_window_of_its_reflected_self(self):
        moved = ShiftAndFlip().by_row(self.x, self.chance)
        chances = self.chance.uniform(3)
        for image, found, (top, left, side) in zip(self.x, moved, chances, strict=True):
            wide = np.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
            a, b = int(top * 9), int(left * 9)
            window = wide[:, a : a + 12, b : b + 10]
            expected = window[:, :, ::-1] if side < 0.5 else window
            assert np.array_equal(found.numpy(), expected)
        assert {(int(a * 9), int(b * 9)) for a, b, _ in chances} != {(4, 4)}

    def test_what_only_predicts_stays_as_it_is(self):
        chance = RowChance(self.chance.seeds)
        assert ShiftAndFlip().by_row(self.x, chance) is self.x


def test_preparations_follow_each_other():
    pixels = torch.full((2, 3), 255, dtype=torch.uint8)
    steps = InTurn((PixelsToUnit(), AddNoise(0.0)))
    assert torch.equal(steps(pixels, torch.Generator()), torch.ones(2, 3))


@pytest.mark.parametrize(
    "prepare",
    [
        AddNoise(0.5),
        PixelsToUnit(),
        Augment(),
        ShiftAndFlip(),
        InTurn((PixelsToUnit(), AddNoise(0.5))),
    ],
)
def test_preparations_reach_other_processes(prepare):
    assert pickle.loads(pickle.dumps(prepare)) == prepare
    assert prepare_from_record(prepare_to_record(prepare)) == prepare


def test_only_what_draws_when_a_model_predicts_is_redrawn():
    still = InTurn((PixelsToUnit(), Augment()))
    assert not any(map(is_redrawn, (None, PixelsToUnit(), Augment(), ShiftAndFlip(), still)))
    assert all(map(is_redrawn, (AddNoise(0.5), InTurn((PixelsToUnit(), AddNoise(0.5))), _Mine())))


def test_a_preparation_that_no_record_can_name_is_refused():
    with pytest.raises(DataError, match="add-noise, augment, shift-and-flip, but got _Mine"):
        prepare_to_record(_Mine())


@dataclass(frozen=True)
class _Mine:
    """A user's own preparation."""

    def __call__(self, x, generator):
        return x + torch.rand(x.shape, generator=generator)


def splitmix(seed):
    """SplitMix64 in Python's whole numbers, from the pseudocode of its paper."""
    limit = 2**64
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) % limit
        z = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % limit
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % limit
        yield z ^ (z >> 31)


def test_seeds_of_rows_are_a_known_generators():
    stream = splitmix(2**63 - 5)
    expected = [next(stream) for _ in range(20)]
    seeds = row_seeds(2**63 - 5, torch.tensor([19, 0, 7]))
    assert seeds.tolist() == [expected[19], expected[0], expected[7]]
    assert next(splitmix(1234567)) == 6457827717110365317  # as its authors publish


def test_what_a_row_gets_depends_on_its_own_seed_alone():
    x = torch.zeros(6, 3, 4)
    seeds = row_seeds(3, torch.arange(6))
    whole = prepared(AddNoise(1.0), x, RowChance(seeds))
    some = prepared(AddNoise(1.0), x[[4, 1]], RowChance(seeds[[4, 1]]))
    assert torch.equal(some, whole[[4, 1]])
    alone = torch.randn(3, 4, generator=torch.Generator().manual_seed(int(seeds[2])))
    assert torch.equal(whole[2], alone)


def test_a_users_own_preparation_gets_a_generator():
    x, seeds = torch.zeros(4, 2), row_seeds(0, torch.arange(4))
    one, same = (prepared(_Mine(), x, RowChance(seeds)) for _ in range(2))
    other = prepared(InTurn((_Mine(),)), x, RowChance(row_seeds(1, torch.arange(4))))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_augmentation_is_for_training_alone():
    x, seeds = torch.rand(4, 3, 16, 16), row_seeds(0, torch.arange(4))
    assert torch.equal(prepared(Augment(), x, RowChance(seeds)), x)
    assert not torch.equal(prepared(Augment(), x, RowChance(seeds, training=True)), x)


def noisy(std=1.0, **options):
    """A federation whose target has nothing but noise to look at."""
    task = blobs(target_rows=30)
    blank = {
        role: replace(site, x=torch.zeros_like(site.x), prepare=AddNoise(std))
        for role, site in (("target", task.target), ("test", task.test))
    }
    return federation(replace(task, **blank), **options)


def seen(made, site, rows=None):
    return made.predict(made.initial, site, lambda _, x: x, rows)


def test_every_round_and_every_set_has_noise_of_its_own():
    made = noisy()
    draws = []
    for number in (1, 2):
        made.begin_round(number)
        draws += [seen(made, made.task.target), seen(made, made.task.test)[:30]]
        assert torch.equal(draws[-2], seen(made, made.task.target))  # models are compared on one
    other = noisy(seed=1)
    other.begin_round(1)
    draws.append(seen(other, other.task.target))
    for k, one in enumerate(draws):
        assert one.std().item() == pytest.approx(1, abs=0.25)
        for another in draws[k + 1 :]:
            assert abs(float((one * another).mean())) < 0.4


def test_no_two_folds_share_their_noise():
    made = noisy()
    made.begin_round(3)
    whole = seen(made, made.task.target)
    folds = deal_folds(made, 5)
    for fold in folds:
        assert torch.equal(seen(made, made.task.target, fold), whole[fold])
    assert len({tuple(row) for row in whole.tolist()}) == len(whole)
    model = made.initial
    outputs, _ = held_out_outputs(made, [model] * 5, folds)
    assert torch.equal(outputs, made.predict(model, made.task.target)[torch.cat(folds)])


def test_the_test_outputs_of_a_round_are_those_that_it_was_measured_by():
    made = noisy()
    made.begin_round(4)
    outputs = made.predict(made.initial, made.task.test)
    measured = made.evaluate(4, made.initial).test
    assert measured.loss == pytest.approx(
        float(functional.cross_entropy(outputs, made.task.test.y)), rel=1e-6
    )
    assert made.evaluate(5, made.initial).test.loss != measured.loss


@dataclass(frozen=True)
class _Watching(Supervised):
    """Trains as usual and keeps what it sees."""

    seen: list

    def __call__(self, context):
        self.seen.append((context.own.rows, context.own.x))
        return super().__call__(context)


def in_training(made, round, client=0, **plan):
    watched = []
    how = replace(made.plan(client, round), **plan)
    job = made.job(round, client, made.initial, plan=how, objective=_Watching(watched))
    outcomes, _ = made.do([job], [made.initial])
    assert outcomes[0].failure is None
    return watched


def test_training_draws_anew_in_every_pass_and_round():
    made = noisy(workers=1)
    first, second = (in_training(made, 1, epochs=2, batch_size=30, steps=None) for _ in range(2))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))
    by_row = [x[rows.argsort()] for rows, x in first]
    assert len(by_row) == 2
    assert not torch.isclose(by_row[0], by_row[1]).any()
    smaller = in_training(made, 1, epochs=1, batch_size=7, steps=None)
    gathered = torch.cat([x for _, x in smaller])[torch.cat([r for r, _ in smaller]).argsort()]
    assert torch.equal(gathered, by_row[0])  # whatever the batches
    later = in_training(made, 2, epochs=1, batch_size=30, steps=None)
    assert not torch.isclose(later[0][1][later[0][0].argsort()], by_row[0]).any()


def test_redrawn_noise_is_the_same_for_any_workers_and_after_a_resume(tmp_path):
    task = load_task("digits-noise", noise_draw="redrawn")
    few = {"rounds": 2, "folds": 2}
    one = run(task, "auto", workers=1, out=tmp_path / "one", **few)
    several = run(task, "auto", workers=2, **few)
    run(task, "auto", workers=1, rounds=1, folds=2, out=tmp_path / "parts")
    resumed = run(task, "auto", workers=1, out=tmp_path / "parts", resume=True, **few)
    for other in (several, resumed):
        assert same_model(one.model, other.model)
        assert same_but_for_seconds(one.history, other.history)
    outputs = read_tested(tmp_path / "one").outputs
    right = (outputs.argmax(1) == task.test.y).double().mean().item()
    assert 100 * right == pytest.approx(one.history[-1]["accuracy"])
    (tmp_path / "one" / TESTED_FILE).unlink()
    run(task, "auto", workers=1, out=tmp_path / "one", resume=True, **few)
    assert torch.equal(read_tested(tmp_path / "one").outputs, outputs)
