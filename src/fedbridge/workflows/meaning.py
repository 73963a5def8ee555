"""What a finished run means to somebody who has to decide: joined or alone, and whom it trusted.

The words for a partner are those of the advice, and so are the measurements behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.advice.advise import NoEvidenceError, advise_from_run
from fedbridge.advice.verdict import IN_WORDS, listed
from fedbridge.runs.record import mean, read_run

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.advice.verdict import PartnerRole
    from fedbridge.runs.record import RunRecord

FEW_TEST_ROWS = 100
"""With fewer test rows than that, one split says little of a method."""
LAST = 5
"""Rounds whose mean trust is told."""
TOO_SMALL = 0.005


def what_it_means(folder: Path) -> list[str]:
    """Two lines about the finished run in a folder: alone against joined, and who was trusted."""
    record = read_run(folder)
    return [_alone_or_joined(record), _trusted(record, _roles(folder))]


def is_small_test(folder: Path) -> bool:
    """Whether the test rows are too few to tell methods apart on one split of them."""
    rows = read_run(folder).n_test
    return rows is not None and rows < FEW_TEST_ROWS


def _alone_or_joined(record: RunRecord) -> str:
    """What the target's own labels say, by models that had not seen them."""
    if record.said is None:
        method = record.config["method"]
        return f"Alone or joined: {method} does not cross-validate; a comparison tells."
    worth = record.worth
    if worth is None:
        return f"Alone or joined: {record.said}"
    return (
        f"Alone or joined: loss on your own labels {worth['alone']:.3g} alone, "
        f"{worth['alone'] - worth['gain']:.3g} joined. {record.said}"
    )


def _roles(folder: Path) -> dict[str, PartnerRole]:
    """What the advice makes of every source, by the last rounds of the run."""
    try:
        return {partner.name: partner.role for partner in advise_from_run(folder, None).partners}
    except NoEvidenceError:
        return {}


def _trusted(record: RunRecord, roles: dict[str, PartnerRole]) -> str:
    trust: dict[str, float] = {}
    for index, name in enumerate(record.sources):
        told = [value for _, value in record.source_values("beta", index)][-LAST:]
        found = mean(told)
        if found is not None:
            trust[name] = found
    if not trust:
        return "Trusted: the method weighs no partner by itself."
    groups: dict[PartnerRole | None, list[str]] = {}
    for name in sorted(trust, key=trust.__getitem__, reverse=True):
        groups.setdefault(roles.get(name), []).append(f"{name} {100 * trust[name]:.0f}%")
    parts = [
        listed(names) + ("" if role is None else f" ({IN_WORDS[role][len(names) > 1]})")
        for role, names in groups.items()
    ]
    own = 1 - sum(trust.values())
    rest = f"; your own rows {100 * own:.0f}%" if record.said and own > TOO_SMALL else ""
    return f"Trusted: {'; '.join(parts)}{rest}."
