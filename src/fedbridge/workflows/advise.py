"""``fedbridge.advise``: advice with sites on this machine, or over a network of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fedbridge.advice import advise as with_advice
from fedbridge.advice.measure import ADVICE
from fedbridge.base.errors import OptionError
from fedbridge.base.options import check_choice
from fedbridge.workflows.run import ENGINES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.advice.advise import AdviceRequest, Progress
    from fedbridge.advice.verdict import Advice
    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.loop import HistoryLine

STARTING = 0.05
"""Share of the work that is starting Flower's processes, for progress bars."""


def advise(
    task: FederatedTask | str | Path,
    target: str | None = None,
    seed: int = 0,
    engine: str = "local",
    *,
    after: int | None = None,
    samples: Sequence[int] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Advice:
    """Advice before joining: what it is worth by the target's own labels, and who is near.

    Args:
        task: a task, what ``load_task`` takes, or the folder of a run, whose last rounds then
            speak instead of measuring rounds.
        target: the site that asks, if ``task`` is a name or path.
        seed: of the data split, the initial model and the measuring rounds.
        engine: where the sites are, as in ``run``; the verdict is the same.
        after: rounds of ``auto`` before gradients are measured, besides the task's warm-up; None
            for 8. Without any nothing is tried, and nothing decided.
        samples: numbers of labelled samples for the curve; None for a quarter to 64 times as many
            as there are.
        progress: called with the share that is done, and what is under way.
        **options: options of the run (``Settings``) and, with Flower, of the network; those of the
            task are given to ``load_task``.

    Example:
        >>> advice = advise("digits-contrast", workers=1)
        >>> advice.decision
        'join'
    """
    check_choice("engine", engine, ENGINES)
    return with_advice(
        task,
        target,
        seed,
        after=after,
        samples=samples,
        progress=progress,
        measure=None if engine == "local" else partial(measure_over_flower, engine),
        **options,
    )


def measure_over_flower(engine: str, asked: AdviceRequest, progress: Progress) -> HistoryLine:
    """The measuring rounds over Flower processes on this machine."""
    from fedbridge.flower import run_here

    if asked.rounds < 1:
        raise OptionError(
            "Expected at least one round (`after`) over a network, but got 0: only the engine "
            "'local' measures gradients without any."
        )
    first = 1 - int(asked.options.get("warmup", asked.task.defaults.get("warmup", 0)))
    rounds = asked.rounds - first + 1

    def told(line: HistoryLine) -> None:
        done = (line["round"] - first + 1) / rounds
        progress(STARTING + (1 - STARTING) * done, f"round {line['round']} of {asked.rounds}")

    progress(0.0, "starting Flower")
    result = run_here(
        asked.task,
        ADVICE,
        asked.rounds,
        asked.seed,
        engine,
        None,
        resume=False,
        callbacks=[told],
        options={**asked.options, **asked.of_method},
    )
    return result.history[-1]
