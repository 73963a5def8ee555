"""Who holds which rows: equal shares, shares of few labels, portions that differ by label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbridge.data.split import stratified_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedbridge.data.split import Rows

    Labels = NDArray[np.integer]


def equal_sizes(n: int, parts: int) -> list[int]:
    """``n`` rows over some parts, the first of which get one more where it does not divide."""
    return [n // parts + (part < n % parts) for part in range(parts)]


def stratified_shares(labels: Labels, sizes: Sequence[int], rng: np.random.Generator) -> list[Rows]:
    """Shares of these sizes, each with the labels in the same proportions, rows ascending."""
    order = stratified_order(labels, len(labels), rng)
    return [np.sort(share) for share in np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])]


def deal_labels(
    clients: int, n_labels: int, per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """The labels that each client holds, so that all labels are held about equally often.

    Every client takes the labels that the fewest hold so far, with chance among equals. Compared
    with free draws, no label is left without a holder where there is room for all.
    """
    holders = np.zeros(n_labels, dtype=np.int64)
    hands = []
    for _ in range(clients):
        hand = np.lexsort((rng.random(n_labels), holders))[:per_client]
        holders[hand] += 1
        hands.append(sorted(hand.tolist()))
    return hands


def shares_by_label(
    labels: Labels, hands: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Rows]:
    """Each label's rows in equal parts among the clients that hold it, rows ascending."""
    shares: list[list[Rows]] = [[] for _ in hands]
    for label in np.unique(labels):
        holding = [share for share, hand in zip(shares, hands, strict=True) if label in hand]
        if holding:
            rows = rng.permutation(np.flatnonzero(labels == label))
            for share, part in zip(holding, np.array_split(rows, len(holding)), strict=True):
                share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def portions_by_label(
    labels: Labels, portion: Mapping[int, float], rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """A portion of each label's rows, and all the others; both ascending."""
    taken = []
    for label, share in sorted(portion.items()):
        rows = rng.permutation(np.flatnonzero(labels == label))
        taken.append(rows[: round(share * len(rows))])
    chosen = np.sort(np.concatenate(taken))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)
