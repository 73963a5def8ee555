"""Seeds: one for every purpose of every client in every round, the same in every engine."""

from __future__ import annotations

import numpy as np

FIRST_ROUND = 2**20
"""Added to round numbers in seeds, because warm-up rounds are counted down to 0."""

TRAINING, PROBING, DROPPING, CHOOSING, SPLITTING = range(5)


def seed_of(seed: int, round: int, client: int, purpose: int = 0) -> int:
    """A seed for one purpose of one client in one round, the same in every engine."""
    words = np.random.SeedSequence((seed, FIRST_ROUND + round, client, purpose))
    return int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))
