"""Why the coordinator mixes, and does not shuffle the sources' updates for the target to mix."""

from itertools import permutations

import pytest
import torch
from helpers import tensor
from small import federation

import fedbridge as fb
from fedbridge.core.aggregate import aggregate

ROUNDS = 3


def test_whoever_compares_rounds_undoes_the_shuffling():
    """The sources of ``digits-noise`` are alike, and yet each of them is known by its updates."""
    task = fb.load_task("digits-noise")
    fed = federation(task, task.model)
    state, before, right = fed.initial, None, 0
    for number in range(1, ROUNDS + 1):
        gathered, _ = fed.gather(number, state)
        updates = torch.nn.functional.normalize(gathered.rows[1:])
        own = torch.nn.functional.normalize(updates - updates.mean(0))
        if before is not None:
            alike = (before @ own.T).tolist()
            guess = max(
                permutations(range(len(own))),
                key=lambda order: sum(alike[i][k] for i, k in enumerate(order)),
            )
            right += sum(i == k for i, k in enumerate(guess))
        before, state = own, fed.averaged(state, gathered)
    assert right == (ROUNDS - 1) * len(task.sources)


@pytest.mark.parametrize("rule", ["fedda", "fedgp"])
def test_whoever_knows_the_sources_reads_the_targets_update_from_the_model(rule):
    """Off the sources' span the step is the target's, but for its length; β need not be known."""
    generator = torch.Generator().manual_seed(0)
    target, *sources = torch.randn(4, 50, generator=generator, dtype=torch.float64)
    step = aggregate(rule, target, torch.stack(sources), beta=tensor(0.2, 0.5, 0.9))
    span = torch.linalg.qr(torch.stack(sources).T)[0]

    def off_span(vector):
        rest = vector - span @ (span.T @ vector)
        return rest / rest.norm()

    torch.testing.assert_close(off_span(step), off_span(target))
    assert float(target @ off_span(target)) > 0.9 * float(target.norm())
