"""What advice consists of, and how numbers become a decision and a decision plain words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from fedbridge.core.rules import names
from fedbridge.evaluation.intervals import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

PartnerRole = Literal["helps", "far", "opposed", "unclear"]
Joining = Literal["join", "alone", "unclear"]
FORMAT = 1
ALONE, JOINED = "target-only", "auto"
"""What is recommended to one who should not join, and to everybody else."""

WORTH_IT = 0.1
"""A rule is worth joining for if it saves at least this share of the error of training alone."""

NEAR = 3.0
"""``d²/σ²`` below which half trust in a source beats training alone: ``(σ² + d²)/4 < σ²``."""

FEWEST = 8
"""Fewer degrees of freedom than that say nothing about noise."""

IN_WORDS: dict[PartnerRole, tuple[str, str]] = {
    "helps": ("helps", "help"),
    "opposed": ("pulls the other way", "pull the other way"),
    "far": ("is far, its weight should be near zero", "are far, their weights should be near zero"),
    "unclear": ("may help or not", "may help or not"),
}
"""What is said of one source, and of several."""

SAME = 0.05
"""Predicted errors that differ by less, as shares of that of training alone, are the same."""

MOST_NAMES = 6


@dataclass(frozen=True)
class Partner:
    """A source as the target sees it.

    Attributes:
        name: the source.
        samples: its rows; None where only a run's history speaks.
        d2: squared distance of its gradient from the target's; unbiased, may be negative.
        cosine: of the angle between the two.
        ratio: ``d²/σ²``: below 3, half trust in this source alone already beats training alone.
        weight: the best trust in it alone, ``σ²/(σ² + d²)``, from 0 to 1.
        role: what to make of it.
    """

    name: str
    samples: int | None
    d2: Interval
    cosine: Interval
    ratio: Interval
    weight: Interval
    role: PartnerRole


@dataclass(frozen=True)
class RuleError:
    """The predicted Delta error of a rule.

    Attributes:
        rule: its name.
        error: ``Δ²``; an upper bound where ``bound`` says so.
        relative: the same as a share of the error of training alone, ``Δ²/σ²``.
        bound: whether it is only a bound.
    """

    rule: str
    error: Interval
    relative: Interval
    bound: bool = False


@dataclass(frozen=True)
class Losses:
    """Mean loss on the target's labelled rows by models that had not seen them.

    Attributes:
        alone: the target by itself, cross-validated.
        sources: the sources' model.
        adapted: that model trained on by the target, cross-validated.
        gain: what the better of the last two saves, as a share of the first.
        rows: rows that the losses are of.
    """

    alone: float
    sources: float
    adapted: float
    gain: Interval
    rows: int


@dataclass(frozen=True)
class Point:
    """What so many labelled samples would mean.

    Attributes:
        samples: labelled samples of the target.
        alone: predicted error of training alone.
        best: predicted error of the best rule that joins.
        rule: which that is.
    """

    samples: int
    alone: float
    best: float
    rule: str

    @classmethod
    def of(cls, samples: int, alone: float, errors: dict[str, float]) -> Point:
        """With the best of the joining rules."""
        best = min(errors, key=errors.__getitem__)
        return cls(samples, alone, errors[best], best)


@dataclass(frozen=True)
class Advice:
    """Is joining worth it, who helps, which rule, and how sure one can be.

    Attributes:
        task: the task's name.
        target: the site that asks.
        seed: of the measuring round.
        evidence: where the numbers come from, in words.
        samples: labelled rows of the target.
        sigma2: noise of the target's gradient; None where nothing shows it.
        partners: every source.
        rules: every rule, the smallest predicted error first.
        reduction: share of the error of training alone that the best joining rule saves.
        losses: the trial on the target's rows, if there was one.
        decision: whether to join.
        recommended: the method to use.
        best_rule: the single rule to join with, by its predicted error; None if there is none.
        thin: why the evidence is too thin for a decision; empty when it is not.
        curve: how the answer changes with the target's samples.
        enough: samples with which partners are no longer needed; None if beyond the curve.
        verdict: all of it in a few sentences.
        notes: what else a reader should know.
    """

    task: str
    target: str
    seed: int
    evidence: str
    samples: int | None
    sigma2: Interval | None = None
    partners: tuple[Partner, ...] = ()
    rules: tuple[RuleError, ...] = ()
    reduction: Interval | None = None
    losses: Losses | None = None
    decision: Joining = "unclear"
    recommended: str = JOINED
    best_rule: str | None = None
    thin: tuple[str, ...] = ()
    curve: tuple[Point, ...] = ()
    enough: int | None = None
    verdict: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The verdict."""
        return self.verdict

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {"format": FORMAT, **asdict(self)}


def role_of(ratio: Interval, cosine: Interval) -> PartnerRole:
    """What to make of a source."""
    if cosine.high < 0:
        return "opposed"
    if ratio.high < NEAR:
        return "helps"
    return "far" if ratio.low > NEAR else "unclear"


@dataclass(frozen=True)
class Case:
    """What a verdict is made of: the numbers, and the degrees of freedom of the target's noise."""

    numbers: Advice
    freedom: int

    @cached_property
    def best(self) -> RuleError | None:
        """The rule to join with; None if none could be predicted."""
        return simplest_of_the_best(self.numbers.rules)

    @cached_property
    def reduction(self) -> Interval | None:
        """What it saves, as a share of the error of training alone."""
        if self.best is None:
            return None
        share = self.best.relative
        return Interval(1 - share.value, 1 - share.high, 1 - share.low)

    def by_gradients(self) -> Joining:
        """What the predicted errors say."""
        if self.reduction is None or self.freedom < FEWEST:
            return "unclear"
        if self.reduction.low > 0 and self.reduction.value > WORTH_IT:
            return "join"
        return "alone" if self.reduction.value < WORTH_IT else "unclear"

    def by_losses(self) -> Joining:
        """What the trial says."""
        losses = self.numbers.losses
        if losses is None:
            return "unclear"
        if losses.gain.low > 0:
            return "join"
        return "alone" if losses.gain.high < 0 else "unclear"

    def thin(self) -> tuple[str, ...]:
        """Why there is no decision; empty if there is one."""
        reasons = []
        if self.reduction is None:
            reasons.append("the target's noise cannot be measured on a single batch")
        elif self.freedom < FEWEST:
            reasons.append(
                f"the target's noise stands on {self.freedom} "
                f"degree{'s' * (self.freedom != 1)} of freedom, and {FEWEST} are the least"
            )
        elif self.by_gradients() == self.by_losses() == "unclear":
            reasons.append(
                f"the error may {_change(self.reduction.low)} or {_change(self.reduction.high)}"
            )
        sides = {self.by_gradients(), self.by_losses()}
        if sides == {"join", "alone"}:
            said = {"join": "for joining", "alone": "against it"}
            reasons.append(
                f"the gradients speak {said[self.by_gradients()]} and the loss on the target's "
                f"rows {said[self.by_losses()]}"
            )
        return tuple(reasons)

    def decision(self) -> Joining:
        """Whether to join: by the gradients, or the losses where those are silent."""
        if self.thin():
            return "unclear"
        gradients = self.by_gradients()
        return self.by_losses() if gradients == "unclear" else gradients

    def recommended(self) -> str:
        """The method to use.

        How to join is a matter for ``auto``: predicted errors tell whether joining pays better than
        they tell which rule does (docs/advise.md), and ``auto`` decides by losses as it goes.
        """
        return ALONE if self.decision() == "alone" else JOINED

    def words(self) -> str:
        """The verdict."""
        return " ".join(filter(None, (self._answer(), self._sources(), self._advice())))

    def _answer(self) -> str:
        decision = self.decision()
        if decision == "unclear":
            return f"The evidence is too thin to decide: {'; '.join(self.thin())}."
        assert self.reduction is not None
        if self.by_gradients() == "unclear":
            return self._answer_by_losses()
        if decision == "alone":
            most = percent(max(self.reduction.value, 0.0))
            return (
                f"Stay alone: no rule is expected to lower the error of the update by more than "
                f"{most} against training alone."
            )
        return (
            f"Join: the expected error of the update falls by {with_range(self.reduction)} "
            f"against training alone."
        )

    def _answer_by_losses(self) -> str:
        """Where the gradients are silent: what the trial showed."""
        assert self.numbers.losses is not None
        gain = self.numbers.losses.gain
        if self.decision() == "alone":
            more = Interval(-gain.value, -gain.high, -gain.low)
            return (
                f"Stay alone: the loss on the target's own rows is higher by {with_range(more)} "
                f"with the sources than without."
            )
        return (
            f"Join: the loss on the target's own rows is lower by {with_range(gain)} with the "
            f"sources than without."
        )

    def _sources(self) -> str:
        parts = []
        for role, (one, many) in IN_WORDS.items():
            names = [partner.name for partner in self.numbers.partners if partner.role == role]
            if names:
                parts.append(f"{listed(names)} {one if len(names) == 1 else many}")
        return f"{'; '.join(parts)}." if parts else ""

    def _advice(self) -> str:
        decision = self.decision()
        if decision == "unclear":
            return (
                f"Recommended: `{JOINED}`, which goes both ways at once and lets the "
                f"cross-validated loss decide."
            )
        if decision == "alone":
            return (
                f"Recommended: `{ALONE}`. What no single rule finds, `{JOINED}` may still find: it "
                f"is worth a try before the door is closed."
            )
        assert self.best is not None
        return (
            f"Recommended: `{JOINED}`, which learns in every round whom to trust; of the single "
            f"rules `{self.best.rule}` has the smallest predicted error.{self._samples()}"
        )

    def _samples(self) -> str:
        enough, points = self.numbers.enough, self.numbers.curve
        if enough is not None:
            return (
                f" With about {rounded(enough)} labelled samples you would no longer need partners."
            )
        if not points:
            return ""
        most = points[-1].samples
        return f" Even with {most} labelled samples partners would still be worth having."


def ranked(
    errors: dict[str, Interval], shares: dict[str, Interval], *, bound: bool = False
) -> tuple[RuleError, ...]:
    """The rules, the smallest error first; ``bound`` for all but training alone."""
    return tuple(
        RuleError(name, errors[name], shares[name], bound and name != ALONE)
        for name in sorted(errors, key=lambda name: errors[name].value)
    )


def simplest_of_the_best(rules: Sequence[RuleError]) -> RuleError | None:
    """The rule to join with: of those that hardly differ from the best, the simplest.

    Rules are registered from the simplest on.
    """
    joining = [rule for rule in rules if rule.rule != ALONE]
    if not joining:
        return None
    limit = min(rule.relative.value for rule in joining) + SAME
    order = names()
    tied = [rule for rule in joining if rule.relative.value <= limit]
    return min(tied, key=lambda rule: order.index(rule.rule))


def enough_samples(points: Sequence[Point]) -> int | None:
    """Samples from which on no rule saves enough; between two points by interpolation."""

    def spare(point: Point) -> float:
        return 1.0 - point.best / point.alone - WORTH_IT if point.alone > 0 else -WORTH_IT

    if not points or spare(points[-1]) > 0:
        return None
    crossing = None
    for before, after in pairwise(points):
        if spare(before) > 0 >= spare(after):
            part = spare(before) / (spare(before) - spare(after))
            low, high = math.log(before.samples), math.log(after.samples)
            crossing = round(math.exp(low + part * (high - low)))
    return crossing if crossing is not None else points[0].samples


def decided(advice: Advice, *, freedom: int) -> Advice:
    """The advice with its decision, recommendation and words."""
    case = Case(advice, freedom)
    return replace(
        advice,
        reduction=case.reduction,
        decision=case.decision(),
        recommended=case.recommended(),
        best_rule=None if case.best is None else case.best.rule,
        thin=case.thin(),
        verdict=case.words(),
    )


def with_range(share: Interval) -> str:
    """A share and its interval."""
    return f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)})"


def _change(saved: float) -> str:
    return f"rise by {percent(-saved)}" if saved < 0 else f"fall by {percent(saved)}"


def percent(share: float) -> str:
    """A share as people write it."""
    return f"{100 * share:.0f}%"


def listed(names: Sequence[str]) -> str:
    """``A, B and C``; of many, the first and how many more."""
    shown = list(names)
    if len(shown) > MOST_NAMES:
        shown = [*shown[: MOST_NAMES - 1], f"{len(shown) - MOST_NAMES + 1} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def rounded(count: int) -> int:
    """A count to two digits, since it is no more precise than that."""
    size: int = 10 ** max(0, len(str(count)) - 2)
    return size * round(count / size)
