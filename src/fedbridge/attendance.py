"""Who takes part in a round: a seeded choice of sources, and simulated dropouts."""

from __future__ import annotations

import numpy as np

from fedbridge.data.split import round_half_up
from fedbridge.seeds import CHOOSING, DROPPING, seed_of


def chosen_sources(participation: float, n_sources: int, seed: int, round: int) -> list[int]:
    """Sources (from 0) that are asked in a round: a share of them, never nobody."""
    count = max(1, round_half_up(participation * n_sources))
    if count == n_sources:
        return list(range(n_sources))
    chooser = np.random.default_rng(seed_of(seed, round, 0, CHOOSING))
    return sorted(chooser.choice(n_sources, count, replace=False).tolist())


def drops_out(chance: float, seed: int, round: int, client: int) -> bool:
    """Whether a client drops out of a round, by simulation."""
    if chance == 0:
        return False
    drawn = np.random.default_rng(seed_of(seed, round, client, DROPPING)).random()
    return bool(drawn < chance)
