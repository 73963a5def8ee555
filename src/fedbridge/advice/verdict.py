"""From numbers to a decision, and from a decision to plain words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbridge.advice.record import ALONE, JOINED, Advice, Estimated, RuleError
from fedbridge.rules import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.advice.record import Decision, Losses, Partner, Role

WORTH_IT = 0.1
"""A rule is worth joining for if it saves at least this share of the error of training alone."""

NEAR = 3.0
"""``d²/σ²`` below which half trust in a source beats training alone: ``(σ² + d²)/4 < σ²``."""

FEWEST = 8
"""Fewer degrees of freedom than that say nothing about noise."""

IN_WORDS: dict[Role, tuple[str, str]] = {
    "helps": ("helps", "help"),
    "opposed": ("pulls the other way", "pull the other way"),
    "far": ("is far, its weight should be near zero", "are far, their weights should be near zero"),
    "unclear": ("may help or not", "may help or not"),
}
"""What is said of one source, and of several."""

SAME = 0.05
"""Predicted errors that differ by less, as shares of that of training alone, are the same."""

MOST_NAMES = 6


def role_of(ratio: Estimated, cosine: Estimated) -> Role:
    """What to make of a source."""
    if cosine.high < 0:
        return "opposed"
    if ratio.high < NEAR:
        return "helps"
    return "far" if ratio.low > NEAR else "unclear"


@dataclass(frozen=True)
class Case:
    """What a verdict is made of.

    Attributes:
        target: who asks.
        partners: the sources.
        best: the rule to join with; None if none could be predicted.
        reduction: what it saves, as a share of the error of training alone.
        losses: the trial, if there was one.
        freedom: degrees of freedom of the target's noise.
        samples: labelled rows of the target.
        enough: samples with which partners are no longer needed.
        longest: the largest number of samples that was looked at.
    """

    target: str
    partners: Sequence[Partner]
    best: str | None
    reduction: Estimated | None
    losses: Losses | None
    freedom: int
    samples: int | None
    enough: int | None
    longest: int | None

    def by_gradients(self) -> Decision:
        """What the predicted errors say."""
        if self.reduction is None or self.freedom < FEWEST:
            return "unclear"
        if self.reduction.low > 0 and self.reduction.value > WORTH_IT:
            return "join"
        return "alone" if self.reduction.value < WORTH_IT else "unclear"

    def by_losses(self) -> Decision:
        """What the trial says."""
        if self.losses is None:
            return "unclear"
        if self.losses.gain.low > 0:
            return "join"
        return "alone" if self.losses.gain.high < 0 else "unclear"

    def thin(self) -> tuple[str, ...]:
        """Why there is no decision; empty if there is one."""
        reasons = []
        if self.best is None or self.reduction is None:
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

    def decision(self) -> Decision:
        """Whether to join: by the gradients, or the losses where those are silent."""
        if self.thin():
            return "unclear"
        gradients = self.by_gradients()
        return self.by_losses() if gradients == "unclear" else gradients

    def recommended(self) -> str:
        """The method to use.

        Joining is a matter for ``auto``: predicted errors tell whether joining pays better than
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
            f"Join: the expected error of the update falls by {_with_range(self.reduction)} "
            f"against training alone."
        )

    def _answer_by_losses(self) -> str:
        """Where the gradients are silent: what the trial showed."""
        assert self.losses is not None
        gain = self.losses.gain
        if self.decision() == "alone":
            more = Estimated(-gain.value, -gain.high, -gain.low)
            return (
                f"Stay alone: the loss on the target's own rows is higher by {_with_range(more)} "
                f"with the sources than without."
            )
        return (
            f"Join: the loss on the target's own rows is lower by {_with_range(gain)} with the "
            f"sources than without."
        )

    def _sources(self) -> str:
        parts = []
        for role, (one, many) in IN_WORDS.items():
            names = [partner.name for partner in self.partners if partner.role == role]
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
        return (
            f"Recommended: `{JOINED}`, which learns in every round whom to trust; of the single "
            f"rules `{self.best}` has the smallest predicted error.{self._samples()}"
        )

    def _samples(self) -> str:
        if self.enough is not None:
            return (
                f" With about {rounded(self.enough)} labelled samples you would no longer need "
                f"partners."
            )
        if self.longest is None:
            return ""
        return f" Even with {self.longest} labelled samples partners would still be worth having."


def ranked(
    errors: dict[str, Estimated], shares: dict[str, Estimated], *, bound: bool = False
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


def decided(advice: Advice, *, freedom: int) -> Advice:
    """The advice with its decision, recommendation and words."""
    best = simplest_of_the_best(advice.rules)
    reduction = None
    if best is not None:
        share = best.relative
        reduction = Estimated(1 - share.value, 1 - share.high, 1 - share.low)
    case = Case(
        target=advice.target,
        partners=advice.partners,
        best=None if best is None else best.rule,
        reduction=reduction,
        losses=advice.losses,
        freedom=freedom,
        samples=advice.samples,
        enough=advice.enough,
        longest=advice.curve[-1].samples if advice.curve else None,
    )
    return replace(
        advice,
        reduction=reduction,
        decision=case.decision(),
        recommended=case.recommended(),
        best_rule=case.best,
        thin=case.thin(),
        verdict=case.words(),
    )


def _with_range(share: Estimated) -> str:
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
