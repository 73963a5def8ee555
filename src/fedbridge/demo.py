"""``fedbridge demo``: every rule on embedded digits, from a small shift to outright conflict.

Three targets see the same digits in three ways. With a little noise the sources' model fits the
target almost as it is; turned images need both sides; on inverted images every pixel says the
opposite, and whoever follows the sources is lost. No fixed trust in sources suits all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge import methods, rules
from fedbridge.compare import Setting, compare

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.compare import Progress
    from fedbridge.comparison import Comparison

ROUNDS = 10
OPTIONS: dict[str, object] = {"lr": 0.3, "batch_size": 32}
"""Larger steps than the task's own, because the demo has few rounds."""

SETTINGS = (
    Setting("noise", "digits-noise", options={"noise": 0.15}),
    Setting("rotation", "digits-rotation", options={"angle": 30.0}),
    Setting("inversion", "digits-contrast"),
)
IN_WORDS = {
    "noise": "Small shift (a little noise)",
    "rotation": "Medium shift (images turned by 30 degrees)",
    "inversion": "Large shift (images inverted)",
}
CLEAR = 5.0
"""Points of accuracy that count as a clear difference."""


def run_demo(
    seeds: Sequence[int],
    rounds: int = ROUNDS,
    out: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """All rules and ``auto`` under the three shifts; what is finished in ``out`` is kept."""
    options = OPTIONS | ({} if workers is None else {"workers": workers})
    names = (*rules.names(), methods.names()[0])
    return compare(SETTINGS, names, seeds, rounds, out, options, progress)


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
        f"never more than {gaps[safest]:.0f} points behind it{others}; for source-only it is "
        f"{gaps['source-only']:.0f}, for target-only {gaps['target-only']:.0f}."
    )


def _scores(comparison: Comparison, setting: str) -> dict[str, float]:
    """The mean score of every method that has one."""
    means = {name: comparison.score(setting, name) for name in comparison.methods}
    return {name: mean for name, mean in means.items() if mean is not None}
