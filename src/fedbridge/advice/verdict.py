"""What advice consists of, and how numbers become plain words.

Whether to join is decided by what ``auto`` itself goes by: held-out losses of all its candidates
against those that need no source (``methods.candidates.Worth``). What gradients predict of single
rules stands beside it as theory: their order is hardly that of the results (docs/advise.md).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from fedbridge.evaluation.intervals import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.methods.candidates import Worth

PartnerRole = Literal["helps", "far", "opposed", "unclear"]
Joining = Literal["join", "alone", "unclear"]
FORMAT = 2
TARGET_ONLY = "target-only"
ALONE, JOINED = "alone-auto", "auto"
"""What is recommended to one who should not join, and to everybody else."""

WORTH_IT = 0.1
"""In theory partners are needed where a rule saves this share of the error of training alone."""

NEAR = 3.0
"""``d²/σ²`` below which half trust in a source beats training alone: ``(σ² + d²)/4 < σ²``."""

IN_WORDS: dict[PartnerRole, tuple[str, str]] = {
    "helps": ("helps", "help"),
    "opposed": ("pulls the other way", "pull the other way"),
    "far": ("is far, its weight should be near zero", "are far, their weights should be near zero"),
    "unclear": ("may help or not", "may help or not"),
}
"""What is said of one source, and of several."""

MOST_NAMES = 6
NINETY_FIVE = 1.96


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
        share: its part in the model of ``auto``; None where that is not known.
    """

    name: str
    samples: int | None
    d2: Interval
    cosine: Interval
    ratio: Interval
    weight: Interval
    role: PartnerRole
    share: float | None = None


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
    """Is joining worth it, who helps, and how sure one can be.

    Attributes:
        task: the task's name.
        target: the site that asks.
        seed: of the measuring rounds.
        evidence: where the numbers come from, in words.
        samples: labelled rows of the target.
        worth: what joining is worth by cross-validation at the target; None if that was not tried.
        decision: whether to join.
        recommended: the method to use.
        thin: why the evidence is too thin for a decision; empty when it is not.
        partners: every source.
        sigma2: noise of the target's gradient; None where nothing shows it.
        rules: in theory, every rule, the smallest predicted error of an update first.
        curve: in theory, how the answer changes with the target's samples.
        enough: samples with which partners are no longer needed; None if beyond the curve.
        verdict: all of it in a few sentences.
        notes: what else a reader should know.
    """

    task: str
    target: str
    seed: int
    evidence: str
    samples: int | None
    worth: Worth | None = None
    decision: Joining = "unclear"
    recommended: str = JOINED
    thin: str = ""
    partners: tuple[Partner, ...] = ()
    sigma2: Interval | None = None
    rules: tuple[RuleError, ...] = ()
    curve: tuple[Point, ...] = ()
    enough: int | None = None
    verdict: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The verdict."""
        return self.verdict

    def with_notes(self, *notes: str) -> Advice:
        """The same, with more that a reader should know."""
        return replace(self, notes=(*self.notes, *notes))

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


def decided(advice: Advice) -> Advice:
    """The advice with its decision, recommendation and words."""
    decision: Joining = "unclear" if advice.worth is None else advice.worth.decision
    known = replace(
        advice,
        decision=decision,
        recommended=ALONE if decision == "alone" else JOINED,
        thin=_thin(advice) if decision == "unclear" else "",
    )
    parts = (_answer(known), _sources(known), _recommendation(known))
    return replace(known, verdict=" ".join(filter(None, parts)))


def _thin(advice: Advice) -> str:
    """Why nothing can be decided."""
    if advice.worth is None:
        return "nothing could be tried on the target's own labels (it takes two of one class)"
    return f"cross-validated, joining makes {in_points(advice.worth)} against training alone"


def _answer(advice: Advice) -> str:
    worth = advice.worth
    if advice.decision == "unclear" or worth is None:
        return f"The evidence is too thin to decide: {advice.thin}."
    gain = relative(worth)
    if advice.decision == "alone":
        most = percent(max(0.0, gain.high))
        return (
            f"Stay alone: cross-validated on your {worth.rows} labels, the sources lower the loss "
            f"by {most} at most."
        )
    return (
        f"Join: cross-validated on your {worth.rows} labels, it makes {in_points(worth)} and a "
        f"loss that is lower by {with_range(gain)}, against training alone."
    )


def _sources(advice: Advice) -> str:
    """Who helps, and who does not; where nobody is needed, only the latter."""
    parts = []
    for role, (one, many) in IN_WORDS.items():
        names = [partner.name for partner in advice.partners if partner.role == role]
        if names and (advice.decision != "alone" or role in ("far", "opposed")):
            parts.append(f"{listed(names)} {one if len(names) == 1 else many}")
    if not parts:
        return ""
    as_they_are = "; ".join(parts)
    if advice.decision == "join" and not any(p.role == "helps" for p in advice.partners):
        return f"As they are, {as_they_are}; what they have learned can be turned to use."
    return f"{as_they_are}."


def _recommendation(advice: Advice) -> str:
    if advice.decision == "alone":
        return f"Recommended: `{ALONE}`, which makes the best of your own rows."
    why = "which learns in every round whom to trust, and how far"
    if advice.decision == "unclear":
        why = "in which what needs no source stays in the choice"
    return f"Recommended: `{JOINED}`, {why}."


def relative(worth: Worth) -> Interval:
    """What joining saves of the loss of training alone, with a 95% interval."""
    unit = max(worth.alone, 1e-30)
    spread = NINETY_FIVE * worth.error
    return Interval(worth.gain / unit, (worth.gain - spread) / unit, (worth.gain + spread) / unit)


def in_points(worth: Worth) -> str:
    """``+12 ± 5 points of accuracy``."""
    unit = "points of accuracy" if worth.of_classes else "% of the squared error"
    points = worth.points if worth.of_classes else -worth.points
    return f"{points:+.0f} ± {worth.points_error:.0f} {unit}"


def ranked(
    errors: dict[str, Interval], shares: dict[str, Interval], *, bound: bool = False
) -> tuple[RuleError, ...]:
    """The rules, the smallest error first; ``bound`` for all but training alone."""
    return tuple(
        RuleError(name, errors[name], shares[name], bound and name != TARGET_ONLY)
        for name in sorted(errors, key=lambda name: errors[name].value)
    )


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


def with_range(share: Interval) -> str:
    """A share and its interval."""
    return f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)})"


def percent(share: float) -> str:
    """A share as people write it."""
    return f"{100 * share:.0f}%"


def listed(names: Sequence[str]) -> str:
    """``A, B and C``; of many, the first and how many more."""
    shown = list(names)
    if len(shown) > MOST_NAMES:
        shown = [*shown[: MOST_NAMES - 1], f"{len(shown) - MOST_NAMES + 1} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
