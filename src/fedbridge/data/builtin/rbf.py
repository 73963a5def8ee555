r"""``rbf``: the paper's synthetic regression, with a dial for how far the sources are.

Inputs come from a mixture of ten Gaussians in 50 dimensions. Outputs are

.. math:: y = A \phi(x) + b, \qquad \phi_i(x) = \exp(-\|x - \mu_i\|^2 / s_i^2),

with 100 radial basis functions. All domains share the mixture, ``A`` and ``b``. The target has
the centres and widths as drawn; a source at distance ``diff`` has each centre moved by
``diff * U(0, 1)`` and each squared width by ``100 * diff * U(0, 1)``.

``protocol="paper"`` is the paper's figure with its public scripts beside it: all domains have the
same points; the target tests on those that are not labelled; parameters start in U(−½, ½); the
server takes full-batch steps with one momentum over all of them,

.. math:: v \leftarrow 0.9\, v + g, \qquad \theta \leftarrow \theta - 0.04\, v,

300 in the figure (``rounds=300``), for a gain of 1/(1 − 0.9) = 10; and automatic weights stand on
gradients at the initial parameters, the target's noise on its batches of two, and are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.options import check_choice, check_number, check_whole
from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, generator, split_target
from fedbridge.data.task import SHIFTED_TARGET, check_shifted_target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedbridge.data.split import TargetSplit
    from fedbridge.data.task import FederatedTask

INPUTS = 50
OUTPUTS = 10
FUNCTIONS = 100
GAUSSIANS = 10
POINTS = 5000
WIDEST = 100.0
LABELLED = SplitOptions(n_target=50)
MODEL = "sigmoid:100"
RUN_DEFAULTS = {
    "optimizer": "momentum",
    "momentum": 0.9,
    "lr": 0.04,
    "lr_target": 0.01,
    "batch_size": POINTS,
    "batch_size_target": 2,
    "steps": 6,
}
"""Six steps in each of the usual 50 rounds are the paper's 300.

Steps on two points of the target would run away at the sources' learning rate.
"""
PAPER_MODEL = "sigmoid-uniform:100"
PAPER_DEFAULTS = {
    "optimizer": "sgd",
    "lr": 0.04,
    "batch_size": POINTS,
    "batch_size_target": POINTS,
    "server_momentum": 0.9,
    "evidence": "init",
    "probe_batch_size": 2,
}
"""A round is one step of the server: the scripts' learning rate 0.2 enters twice."""


def rbf_task(
    target: str | None = None,
    seed: int = 0,
    *,
    diff: float | Sequence[float] = 0.5,
    n_sources: int | None = None,
    protocol: str = "fair",
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Regression on radial basis functions, the sources at a distance that you choose.

    Args:
        target: ``None`` or ``"target"``: the domain with the functions as drawn is the target.
        seed: Decides functions, points and which are labelled.
        diff: Distance of the sources from the target in [0, 1], one for all or one each.
        n_sources: How many sources, 1 unless ``diff`` lists several.
        protocol: ``fair``, or ``paper`` for the figure: same points, one momentum, full batches.
        split: How many of the target's 5000 points are labelled; 50 unless it says so.
    """
    check_shifted_target(target)
    distances = _distances(diff, n_sources)
    check_choice("protocol", protocol, ("fair", "paper"))
    paper = protocol == "paper"
    world = _World.draw(generator(seed, "functions"))
    x = world.inputs(generator(seed, "target points"))
    sources = {}
    for number, distance in enumerate(distances, start=1):
        rng = generator(seed, f"source {number}")
        moved = world.moved(distance, rng)
        sources[f"source {number}"] = moved.rows(x if paper else world.inputs(rng))
    labelled = split.or_else(LABELLED)
    return assemble(
        sources,
        world.rows(x),
        _others_test(labelled, seed)
        if paper
        else split_target(None, POINTS, seed, labelled, n_test=0),
        name="rbf",
        origin="generated",
        seed=seed,
        target_name=SHIFTED_TARGET,
        class_names=None,
        test=None if paper else world.rows(world.inputs(generator(seed, "test points"))),
        model=PAPER_MODEL if paper else MODEL,
        defaults=PAPER_DEFAULTS if paper else RUN_DEFAULTS,
    )


@dataclass(frozen=True, eq=False)
class _World:
    """A mixture of Gaussians and the functions of it that one domain has to learn."""

    centres: NDArray[np.float64]
    middles: NDArray[np.float64]
    widths: NDArray[np.float64]
    weights: NDArray[np.float64]
    offset: NDArray[np.float64]

    @classmethod
    def draw(cls, rng: np.random.Generator) -> _World:
        return cls(
            centres=rng.uniform(-0.5, 0.5, (GAUSSIANS, INPUTS)),
            middles=rng.uniform(-0.5, 0.5, (FUNCTIONS, INPUTS)),
            widths=rng.uniform(0, WIDEST, FUNCTIONS),
            weights=rng.uniform(-0.5, 0.5, (FUNCTIONS, OUTPUTS)),
            offset=rng.uniform(-0.5, 0.5, OUTPUTS),
        )

    def moved(self, distance: float, rng: np.random.Generator) -> _World:
        """The same mixture with functions at a distance."""
        return replace(
            self,
            middles=self.middles + distance * rng.random(self.middles.shape),
            widths=self.widths + distance * WIDEST * rng.random(self.widths.shape),
        )

    def inputs(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Fresh points, as many from each Gaussian."""
        of = np.repeat(np.arange(GAUSSIANS), POINTS // GAUSSIANS)
        x: NDArray[np.float64] = self.centres[of] + rng.normal(size=(POINTS, INPUTS))
        return x

    def rows(self, x: NDArray[np.float64]) -> SiteRows:
        """Points with the values of the functions."""
        return SiteRows(_floats(x), _floats(self.values(x)), range(POINTS))

    def values(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The outputs at these points."""
        squares = (x**2).sum(1)[:, None] + (self.middles**2).sum(1) - 2 * x @ self.middles.T
        features = np.exp(-np.maximum(squares, 0.0) / self.widths)
        y: NDArray[np.float64] = features @ self.weights + self.offset
        return y


def _others_test(labelled: SplitOptions, seed: int) -> TargetSplit:
    """So many points labelled, all others for testing."""
    n_test = POINTS - labelled.n_labelled(POINTS)
    if not n_test:
        raise DataError(
            f"Expected fewer than all {POINTS} points of the target to be labelled, because the "
            f"paper tests on the others: ask for fewer."
        )
    return split_target(None, POINTS, seed, BUILT_IN_SPLIT, n_test=n_test)


def _floats(values: NDArray[np.float64]) -> torch.Tensor:
    return torch.from_numpy(values).to(torch.float32)


def _distances(diff: object, n_sources: int | None) -> list[float]:
    """The distance of every source."""
    if not isinstance(diff, Sequence) or isinstance(diff, str):
        count = 1 if n_sources is None else check_whole("n_sources", n_sources, least=1, most=1000)
        return [check_number("diff", diff, least=0, most=1)] * count
    if not diff or n_sources not in (None, len(diff)):
        raise OptionError(
            f"Expected `diff` to be one number or one per source, but got {len(diff)} for "
            f"{n_sources if diff else 'any number of'} sources: leave `n_sources` out."
        )
    return [check_number("diff", distance, least=0, most=1) for distance in diff]
