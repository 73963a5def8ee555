"""What advice consists of: plain frozen records that go to JSON and read as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Role = Literal["helps", "far", "opposed", "unclear"]
Decision = Literal["join", "alone", "unclear"]
FORMAT = 1
ALONE, JOINED = "target-only", "auto"
"""What is recommended to one who should not join, and to everybody else."""


@dataclass(frozen=True)
class Estimated:
    """A number and its 95% interval."""

    value: float
    low: float
    high: float


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
    d2: Estimated
    cosine: Estimated
    ratio: Estimated
    weight: Estimated
    role: Role


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
    error: Estimated
    relative: Estimated
    bound: bool = False


@dataclass(frozen=True)
class Losses:
    """Mean loss on the target's labelled rows by models that had not seen them.

    Attributes:
        alone: the target by itself, cross-validated.
        sources: the sources' model.
        adapted: that model trained on by the target, cross-validated.
        gain: what the better of the last two saves, as a share of the first.
        rows: rows that were judged.
    """

    alone: float
    sources: float
    adapted: float
    gain: Estimated
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
    sigma2: Estimated | None = None
    partners: tuple[Partner, ...] = ()
    rules: tuple[RuleError, ...] = ()
    reduction: Estimated | None = None
    losses: Losses | None = None
    decision: Decision = "unclear"
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
