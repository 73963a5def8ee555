"""Which rows train, which are labelled and which test: seeded, stratified, the same everywhere.

All splits are prefixes of one stratified order, so a larger number of labels contains the smaller
one: a curve over `n_target` adds rows and never swaps them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import numpy as np

from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.options import LARGEST, check_number, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows: TypeAlias = NDArray[np.int64]

TEST_FRACTION = 0.3


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers for one purpose; draws for another purpose never disturb them."""
    known = check_whole("seed", seed, least=0, most=LARGEST)
    return np.random.default_rng([known, crc32(purpose.encode())])


def stratified_order(strata: NDArray[np.generic] | None, n: int, rng: np.random.Generator) -> Rows:
    """A shuffled order of ``n`` rows in which every prefix is a stratified sample.

    The first row of each class comes first, so that any prefix as long as there are classes holds
    them all; then row ``r`` of a class of ``c`` rows stands at ``(r + 1/2) / c``. ``strata=None``
    (regression) is a plain shuffle.
    """
    shuffled = rng.permutation(n)
    if strata is None:
        return shuffled
    labels = np.asarray(strata)[shuffled]
    place = np.empty(n)
    later = np.empty(n, dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
        later[members] = np.arange(len(members)) > 0
    return shuffled[np.lexsort((place, later))]


def stratified_split(
    strata: NDArray[np.generic] | None, n: int, n_first: int, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Split ``n`` rows into ``n_first`` and the others, both in ascending order."""
    order = stratified_order(strata, n, rng)
    return np.sort(order[:n_first]), np.sort(order[n_first:])


@dataclass(frozen=True, eq=False)
class TargetSplit:
    """The target's rows by role; ``labelled`` and ``unlabelled`` together are its training rows."""

    labelled: Rows
    unlabelled: Rows
    test: Rows

    @property
    def training(self) -> Rows:
        """All rows that may be trained on, in ascending order."""
        return np.sort(np.concatenate([self.labelled, self.unlabelled]))


@dataclass(frozen=True)
class SplitOptions:
    """What a user may say of how the target's rows are divided.

    Attributes:
        n_target: How many of its training rows keep their label; all when this and the next are
            None, or as many as the task usually has.
        target_fraction: The same as a fraction of its training rows.
        test_fraction: Share of its rows set aside for testing; None where the task decides that.
    """

    n_target: int | None = None
    target_fraction: float | None = None
    test_fraction: float | None = None

    def or_else(self, usual: SplitOptions) -> SplitOptions:
        """As many labels as a task usually has when nobody asks for a number."""
        if self.n_target is not None or self.target_fraction is not None:
            return self
        return replace(self, n_target=usual.n_target, target_fraction=usual.target_fraction)

    def n_labelled(self, n_training: int) -> int:
        """The number of labelled rows, or an error when that cannot be."""
        if self.n_target is not None and self.target_fraction is not None:
            raise OptionError(
                "Expected either `n_target` or `target_fraction`, but got both: give one of them."
            )
        if self.target_fraction is not None:
            share = check_number("target_fraction", self.target_fraction, above=0, most=1)
            return max(1, round(n_training * share))
        if self.n_target is None:
            return n_training
        n_target = check_whole("n_target", self.n_target, least=1)
        if n_target > n_training:
            raise DataError(
                f"Expected `n_target` to be at most the target's {n_training} training rows, but "
                f"got {n_target}: ask for fewer."
            )
        return n_target

    def n_test(self, n: int) -> int:
        """How many of the target's ``n`` rows are set aside for testing."""
        share = check_number("test_fraction", self.test_fraction, least=0, below=1)
        n_test = round(n * share)
        if share and n_test in (0, n):
            raise DataError(
                f"Expected enough target rows to set {share:.0%} aside for testing, but there "
                f"are only {n}: add rows, or give a test set of your own."
            )
        return n_test


BUILT_IN_SPLIT = SplitOptions()
OWN_SPLIT = SplitOptions(test_fraction=TEST_FRACTION)


def split_target(
    strata: NDArray[np.generic] | None,
    n: int,
    seed: int,
    options: SplitOptions = OWN_SPLIT,
    n_test: int | None = None,
) -> TargetSplit:
    """Split the target's ``n`` rows into test, labelled and unlabelled rows.

    Args:
        strata: The class of each row; ``None`` for regression.
        n: Number of rows.
        seed: Decides the split.
        options: How many rows are labelled, and how many test.
        n_test: How many test, where the task decides; 0 when there is a test set already.
    """
    training, test = split_test(strata, n, options.n_test(n) if n_test is None else n_test, seed)
    return label_rows(strata, training, test, seed, options)


def label_rows(
    strata: NDArray[np.generic] | None, training: Rows, test: Rows, seed: int, options: SplitOptions
) -> TargetSplit:
    """The split whose rows train and test as given, with as many labels as the options say."""
    labelled, unlabelled = stratified_split(
        None if strata is None else strata[training],
        len(training),
        options.n_labelled(len(training)),
        generator(seed, "labels"),
    )
    return TargetSplit(training[labelled], training[unlabelled], test)


def split_test(
    strata: NDArray[np.generic] | None, n: int, n_test: int, seed: int
) -> tuple[Rows, Rows]:
    """The training rows and the ``n_test`` test rows of a site, the same in whatever role."""
    return stratified_split(strata, n, n - n_test, generator(seed, "test"))


def round_half_up(value: float) -> int:
    """Nearest whole number, halves upwards."""
    return int(value + 0.5)
