"""``fedbridge demo``: every rule on embedded digits, from a small shift to a large one.

The target sees the sources' digits turned. By 10 degrees, and the sources' model fits almost as
it is; by 30, and it takes both sides; by 90, and whoever follows the sources is lost. No fixed
trust in sources suits all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbridge import methods
from fedbridge.core import rules
from fedbridge.workflows.compare import compare
from fedbridge.workflows.compared import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.runs.comparison import Comparison
    from fedbridge.workflows.cells import CellProgress

ROUNDS = 15
OPTIONS: dict[str, object] = {"lr": 0.2, "lr_target": 0.1, "batch_size": 32}
"""Larger steps at the sources than the task's own, because the demo has few rounds."""

ANGLES = {10: "Small", 30: "Medium", 90: "Large"}
SETTINGS = tuple(
    Setting(f"turned-{angle}", "digits-rotation", options={"angle": float(angle)})
    for angle in ANGLES
)
IN_WORDS = {
    setting.label: f"{size} shift (images turned by {angle} degrees)"
    for setting, (angle, size) in zip(SETTINGS, ANGLES.items(), strict=True)
}
CLEAR = 5.0
"""Points of accuracy that count as a clear difference."""


def run_demo(
    seeds: Sequence[int],
    rounds: int = ROUNDS,
    out: str | Path | None = None,
    workers: int | None = None,
    progress: CellProgress | None = None,
) -> Comparison:
    """All rules and ``auto`` under the three shifts; what is finished in ``out`` is kept."""
    options: dict[str, Any] = OPTIONS | ({} if workers is None else {"workers": workers})
    names = (*rules.names(), methods.names()[0])
    return compare(SETTINGS, names, seeds, rounds, out, progress=progress, **options)


def what_it_shows(comparison: Comparison) -> str:
    """The table in plain words; every claim is read off the results."""
    sentences = [_about_setting(comparison, setting) for setting in comparison.settings]
    return " ".join(filter(None, [*sentences, _about_the_worst_case(comparison)]))


def _about_setting(comparison: Comparison, setting: str) -> str | None:
    scores = _scores(comparison, setting)
    led, alone = scores.get("source-only"), scores.get("target-only")
    if led is None or alone is None:
        return None
    if led > alone + CLEAR:
        verdict = "so the sources are worth following"
    elif alone > led + CLEAR:
        verdict = "so whoever just follows the sources loses"
    else:
        verdict = "so neither side is clearly better by itself"
    best = max(scores, key=scores.__getitem__)
    return (
        f"{IN_WORDS[setting]}: the sources' model gets {led:.0f}% right, the target alone "
        f"{alone:.0f}%, {verdict}; best is {best} with {scores[best]:.0f}%."
    )


def _about_the_worst_case(comparison: Comparison) -> str | None:
    """Who loses least when the shift is not known beforehand."""
    gaps: dict[str, float] = {}
    for setting in comparison.settings:
        scores = _scores(comparison, setting)
        if len(scores) < len(comparison.methods):
            return None
        top = max(scores.values())
        gaps = {name: max(gaps.get(name, 0.0), top - score) for name, score in scores.items()}
    safest = min(gaps, key=gaps.__getitem__)
    others = "" if safest == "auto" else f"; for auto it is {gaps['auto']:.0f}"
    return (
        f"Nobody knows the shift beforehand: over all of them, {safest} stays nearest to the best, "
        f"never more than {gaps[safest]:.1f} points behind it{others}; for source-only it is "
        f"{gaps['source-only']:.0f}, for target-only {gaps['target-only']:.0f}."
    )


def _scores(comparison: Comparison, setting: str) -> dict[str, float]:
    """The mean score of every method that has one."""
    means = {name: comparison.score(setting, name) for name in comparison.methods}
    return {name: mean for name, mean in means.items() if mean is not None}
