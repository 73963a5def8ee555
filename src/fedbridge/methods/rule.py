"""A rule as a method: gather the updates, measure the evidence, let the rule mix."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.base.errors import OptionError
from fedbridge.core.aggregate import apply_by_entries, combine
from fedbridge.core.checks import check_beta
from fedbridge.core.estimators import Estimate
from fedbridge.core.geometry import Star, divide, read_weights
from fedbridge.core.rules import AnyRule, CoordinateRule, Mix, Rule
from fedbridge.federation.evidence import Gathered, Vectors, measure_evidence
from fedbridge.federation.method import Method, Record
from fedbridge.training.job import SUPERVISED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fedbridge.core.geometry import Geometry
    from fedbridge.federation.federation import Federation
    from fedbridge.training.objective import Objective
    from fedbridge.training.state import Model


KEPT, VELOCITY = "kept.", "velocity"
"""How checkpoints call what a rule remembers."""


class RuleMethod(Method):
    """Algorithm 1 of the paper, for any rule and any evidence."""

    travels: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any], rule: AnyRule) -> None:
        super().__init__(federation, options)
        self.rule = rule
        settings = federation.settings
        self.align = not rule.own_unit if settings.align is None else settings.align
        self.by_samples = settings.by_samples(fedavg=rule.by_samples)
        weighs = rule.noise != "none"
        self.units_differ = weighs and settings.align_evidence not in (None, self.align)
        self.keeps = weighs and settings.evidence == "init"
        at_start = self.keeps and settings.probe_batch_size is not None
        self.probes = at_start or (weighs and settings.evidence == "probe")
        self.borrows = weighs and settings.noise_from == "borrowed"
        self.kept: Mix | None = None
        self.velocity: Tensor | None = None
        self.objective: Objective = SUPERVISED

    def room(self) -> tuple[int, int]:
        """Twice the jobs when clients probe as well."""
        slots, rows = super().room()
        return slots, rows * (2 if self.probes else 1)

    def run_round(self, round: int) -> Record:
        """Gather, measure, mix."""
        federation = self.federation
        begun = time.perf_counter()
        trained, mix = self._gathered(round)
        gathered_at = time.perf_counter()
        record = Record(failures=dict(trained.failures), seconds_train=gathered_at - begun)
        if trained.target is None:
            record.notes.append("the target is missing: the model stays as it was")
            return record
        update = self._with_momentum(self._update(trained, mix, record))
        seen = replace(trained, target=None) if self.rule.without_target else trained
        self.state = self.state.moved(update, federation.new_buffers(self.state, seen))
        record.seconds_aggregate = time.perf_counter() - gathered_at
        return record

    def _gathered(self, round: int) -> tuple[Gathered, Callable[[Record], Tensor]]:
        """What came back, and how it becomes one update.

        Updates of very many sources are added up as they come, where weights depend on none.
        """
        federation, rule = self.federation, self.rule
        added = isinstance(rule, Rule) and rule.reads == "shares" and not rule.alone
        if added and federation.are_many(round):
            assert isinstance(rule, Rule)
            trained, parts = federation.gather_groups(
                round, self.state, partial(self._part, rule), objective=self.objective
            )
            return trained, lambda record: self._sum(rule, trained, parts, record)
        directions = rule.noise == "directions" and not self.kept
        trained, probed = federation.gather(
            round,
            self.state,
            noise="sketch" if directions else "size",
            source_noise=self.borrows,
            probe=self.probes and self.kept is None,
            with_sources=not rule.alone,
            objective=self.objective,
        )
        return trained, lambda record: self._mixture(trained, probed, record)

    def _part(self, rule: Rule, group: Gathered) -> _GroupSum:
        """The mixture of a group of sources, as if there were no others."""
        vectors = group.vectors(align=self.align)
        geometry = self._geometry(vectors, group)
        mix = rule(geometry, **self._options_for(group.source_indices))
        theirs = replace(mix, target=torch.zeros_like(mix.target))
        blocks = self.federation.rule_blocks
        return _GroupSum(
            geometry, mix.sources, combine(theirs, vectors.target, vectors.sources, blocks)
        )

    def _sum(
        self, rule: Rule, trained: Gathered, parts: Sequence[_GroupSum], record: Record
    ) -> Tensor:
        """The mixture of all groups: each weighs what its sources do when all are looked at."""
        present = trained.source_indices
        shares, samples = read_weights(trained.samples if self.by_samples else None, len(present))
        star = Star.joined([part.geometry.star for part in parts])
        geometry = replace(parts[0].geometry, products=star, weights=shares, samples=samples)
        mix = rule(geometry, **self._options_for(present))
        describe(record, geometry, mix, present, self.federation.n_sources)
        theirs = mix.sources.split([part.sources.shape[1] for part in parts], dim=1)
        factors = [
            proportion(rule.name, part.sources, whole)
            for part, whole in zip(parts, theirs, strict=True)
        ]
        of_groups = replace(mix, sources=torch.stack(factors, dim=1))
        sums = torch.stack([part.sum for part in parts])
        return combine(of_groups, trained.rows[0], sums, self.federation.rule_blocks)

    def memory(self) -> dict[str, Tensor]:
        """The first round's mixture, for ``evidence="init"``, and the server's momentum."""
        kept = {} if self.kept is None else vars(self.kept)
        memory = {**super().memory(), **{f"{KEPT}{name}": v for name, v in kept.items()}}
        return memory if self.velocity is None else {**memory, VELOCITY: self.velocity}

    def remember(
        self, model: Model, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take the kept mixture and the momentum up again."""
        super().remember(model, memory, facts)
        kept = {n.removeprefix(KEPT): value for n, value in memory.items() if n.startswith(KEPT)}
        known = Mix(**kept) if kept else None
        if known is not None:  # who has joined since gets nothing of what was decided before
            known = spread(known, [*range(known.beta.shape[1])], self.federation.n_sources)
        self.kept = known
        self.velocity = memory.get(VELOCITY)

    def _with_momentum(self, update: Tensor) -> Tensor:
        """``v ← μ v + update`` with the server's ``μ``, over the rounds; FedAvgM's for any rule.

        Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification, 2019.
        """
        share = self.federation.settings.server_momentum
        if not share:
            return update
        self.velocity = update if self.velocity is None else share * self.velocity + update
        return self.velocity

    def _update(self, trained: Gathered, mix: Callable[[Record], Tensor], record: Record) -> Tensor:
        if not trained.sources:
            if not self.rule.alone:
                record.notes.append("no source is there: a step of the target alone")
            assert trained.target is not None
            noise = trained.target.noise
            record.sigma2 = None if noise is None else float(noise.sum())
            record.beta = [0.0] * self.federation.n_sources
            return trained.rows[0].clone()
        return mix(record)

    def _mixture(self, trained: Gathered, probed: Gathered | None, record: Record) -> Tensor:
        """The mixture of updates that are all there."""
        federation = self.federation
        vectors = trained.vectors(align=self.align)
        path = self._geometry(vectors, trained)
        evidence = path
        if self.units_differ:
            factors = trained.alignment
            evidence = path.rescaled(1.0 / factors if self.align else factors)
        if probed is not None:
            evidence = self._geometry(probed.vectors(align=False), probed, updates=trained)
        present = trained.source_indices
        if isinstance(self.rule, CoordinateRule):
            describe(record, evidence, None, present, federation.n_sources)
            return apply_by_entries(self.rule, vectors.target, vectors.sources, **self.given)
        mix = self._decide(self.rule, evidence, path, present)
        describe(record, evidence, mix, present, federation.n_sources)
        return combine(mix, vectors.target, vectors.sources, federation.rule_blocks)

    def _geometry(
        self, vectors: Vectors, gathered: Gathered, *, updates: Gathered | None = None
    ) -> Geometry:
        federation = self.federation
        return measure_evidence(
            vectors,
            federation.rule_blocks,
            federation.bench.sketch,
            weights=gathered.samples if self.by_samples else None,
            borrowed=self.borrows,
            updates=updates,
            reads=self.rule.reads,
        )

    def _decide(self, rule: Rule, evidence: Geometry, path: Geometry, present: list[int]) -> Mix:
        options = self._options_for(present)
        if self.kept is None:
            mix = rule(evidence, **options)
            if self.keeps:
                self.kept = spread(mix, present, self.federation.n_sources)
            if evidence is path or not (self.keeps or self.units_differ):
                return mix
        kept = mix if self.kept is None else select(self.kept, present)
        if rule.fixed is None:
            return kept
        takes = inspect.signature(rule.fixed).parameters
        same = {name: value for name, value in options.items() if name in takes}
        return rule.fixed(path, **same, beta=kept.beta)

    def _options_for(self, present: list[int]) -> dict[str, Any]:
        """The rule's options; one ``beta`` per source is cut down to the sources at hand."""
        beta = self.given.get("beta")
        if beta is None or isinstance(beta, float | int):
            return self.given
        every = check_beta(beta, self.federation.n_sources)
        return {**self.given, "beta": every[present]}


@dataclass(frozen=True)
class _GroupSum:
    """A group of sources: its geometry, their coefficients (K, n) in it, and their sum (m,)."""

    geometry: Geometry
    sources: Tensor
    sum: Tensor


def proportion(rule: str, alone: Tensor, among_all: Tensor) -> Tensor:
    """(K,) how much less sources weigh among all than alone; the same for each of them.

    Raises:
        OptionError: it is not, so that their updates cannot have been added up before.
    """
    at = alone.abs().argmax(dim=1, keepdim=True)
    factor = divide(among_all.gather(1, at), alone.gather(1, at))
    error = (among_all - factor * alone).abs().amax()
    if bool(error > 1e-9 * among_all.abs().amax()):
        raise OptionError(
            f"Expected {rule!r}, which reads `shares` only, to weigh sources in the same "
            f"proportion whoever else is there, but it does not: leave `reads` out of its "
            f"decorator, and updates are kept until all are there."
        )
    return factor[:, 0]


def spread(mix: Mix, present: list[int], n_sources: int) -> Mix:
    """A mixture of the sources that were there as one of all sources; the others get nothing."""

    def widen(values: Tensor) -> Tensor:
        wide = torch.zeros(len(values), n_sources, dtype=values.dtype)
        wide[:, present] = values
        return wide

    return replace(mix, sources=widen(mix.sources), beta=widen(mix.beta))


def select(mix: Mix, present: list[int]) -> Mix:
    """A mixture of all sources cut down to those that are there.

    The trust in the others goes to the target, or the step would lose their part of its length.
    """
    beta = mix.beta[:, present]
    lost = mix.beta.sum(1) - beta.sum(1)
    return Mix(mix.target + lost, mix.sources[:, present], beta)


def describe(
    record: Record, geometry: Geometry, mix: Mix | None, present: list[int], n_sources: int
) -> None:
    """Put what a person wants to see of a round into its record."""
    whole = replace(geometry, products=geometry.star).whole()
    record.cosine = listed(whole.cosine[0], present, n_sources)
    if whole.noise is not None:
        estimate = Estimate.of(whole)
        record.sigma2 = estimate.sigma2
        record.d2 = listed(estimate.d2, present, n_sources)
        record.tau2_d2 = listed(estimate.tau2_d2, present, n_sources)
    if mix is not None:
        sizes = torch.tensor(geometry.blocks.sizes, dtype=torch.float64)
        shares = (sizes[:, None] * mix.beta).sum(0) / sizes.sum()
        record.beta = listed(shares, present, n_sources)


def listed(values: Tensor, present: list[int], n_sources: int) -> list[float | None]:
    """Numbers of the sources that were there as a list over all sources."""
    result: list[float | None] = [None] * n_sources
    for index, value in zip(present, values.tolist(), strict=True):
        result[index] = value
    return result
