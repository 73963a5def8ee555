"""Advice in the terminal: the verdict, the partners, the rules, and the curve in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedbridge.advice.verdict import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from fedbridge.advice.verdict import Advice, Interval

BARS = "▁▂▃▄▅▆▇█"


def show_advice(advice: Advice) -> Group:
    """All that a person wants to see of it."""
    parts: list[RenderableType] = [Text(advice.verdict, "bold"), Text("")]
    if advice.sigma2 is not None:
        parts += [_partners(advice), _rules(advice)]
    if advice.losses is not None:
        parts.append(Text(loss_line(advice)))
    if advice.curve:
        parts.append(Text(curve_line(advice)))
    parts.append(Text(f"Evidence: {advice.evidence}."))
    parts += [Text(f"Note: {note}.") for note in advice.notes]
    return Group(*parts)


def _partners(advice: Advice) -> Table:
    title = f"Partners of {advice.target} (95% intervals)"
    table = Table(title=Text(title), title_justify="left")
    for heading in ("partner", "rows", "distance²/noise", "cosine", "best weight", "it"):
        table.add_column(
            heading, justify="left" if heading in ("partner", "it") else "right", overflow="fold"
        )
    for partner in advice.partners:
        table.add_row(
            Text(partner.name),
            "" if partner.samples is None else str(partner.samples),
            _with_interval(partner.ratio),
            _with_interval(partner.cosine),
            _with_interval(partner.weight),
            partner.role,
        )
    return table


def _rules(advice: Advice) -> Table:
    table = Table(title=Text("Predicted error of the update"), title_justify="left")
    table.add_column("rule")
    table.add_column("of training alone", justify="right")
    table.add_column("")
    for rule in advice.rules:
        share = rule.relative
        text = f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)})"
        marks = (_remark(rule.rule, advice), "at most" if rule.bound else "")
        table.add_row(Text(rule.rule), text, ", ".join(filter(None, marks)))
    return table


def _remark(rule: str, advice: Advice) -> str:
    if rule == advice.recommended:
        return "recommended"
    return "best single rule" if rule == advice.best_rule else ""


def loss_line(advice: Advice) -> str:
    """The trial in a sentence."""
    losses = advice.losses
    assert losses is not None
    return (
        f"Loss on the target's own {losses.rows} rows, by models that had not seen them: "
        f"{losses.alone:.3g} alone, {losses.sources:.3g} by the sources' model, "
        f"{losses.adapted:.3g} by that model trained on at the target."
    )


def curve_line(advice: Advice) -> str:
    """What joining saves for more and more samples, as a line of bars."""
    saved = [1.0 - point.best / point.alone if point.alone > 0 else 0.0 for point in advice.curve]
    first, last = advice.curve[0].samples, advice.curve[-1].samples
    return (
        f"What joining saves with {first} to {last} labelled samples: {sparkline(saved)} "
        f"({percent(max(saved[0], 0.0))} to {percent(max(saved[-1], 0.0))})"
    )


def sparkline(shares: Sequence[float]) -> str:
    """Shares from 0 to 1 as bars."""
    top = len(BARS) - 1
    return "".join(BARS[min(top, max(0, round(share * top)))] for share in shares)


def _with_interval(number: Interval) -> str:
    return f"{number.value:.2f} ({number.low:.2f} to {number.high:.2f})"
