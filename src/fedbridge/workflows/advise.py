"""``fedbridge.advise``: advice with sites on this machine, or over a network of them.

``advise_matrix`` makes every site the target in turn: what a consortium's first meeting needs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fedbridge.advice import advise as with_advice
from fedbridge.advice.matrix import AdviceMatrix, Turn
from fedbridge.advice.measure import ADVICE
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.options import check_choice
from fedbridge.data.load import check_weights, load_task
from fedbridge.workflows.compared import targets_of
from fedbridge.workflows.run import ENGINES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedbridge.advice.advise import AdviceRequest, Progress
    from fedbridge.advice.verdict import Advice
    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.follow import HistoryLine

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


def advise_matrix(
    task: str | Path,
    targets: str | Sequence[str] = "all",
    seed: int = 0,
    engine: str = "local",
    *,
    of_task: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> AdviceMatrix:
    """Every site the target in turn, the others its sources: who gains from whom.

    As a target a site has as many labels as ``load_task`` gives it: those of its rows that are not
    held back for testing, or ``n_target`` of them. What cannot be measured is named, and why.

    Args:
        task: what ``load_task`` takes.
        targets: the sites, or ``"all"`` that can be the target.
        seed: of the data splits, the initial model and the measuring rounds.
        engine: where the sites are, as in ``run``.
        of_task: options of the task, for ``load_task``.
        progress: called with the share that is done, and what is under way.
        **options: as ``advise`` takes them.

    Raises:
        FedbridgeError: no site could be measured.
    """
    check_choice("engine", engine, ENGINES)
    given = dict(of_task or {})
    check_weights(task, options.get("model"), given)
    names = targets_of(str(task), targets, given)
    if len(names) < 2:
        raise OptionError(
            f"Expected a task with several sites that can be the target, but {str(task)!r} has "
            f"{len(names)}: leave `matrix` out."
        )
    tell: Progress = progress or (lambda share, text: None)
    turns: list[Turn] = []
    for number, name in enumerate(names):

        def told(share: float, text: str, number: int = number, name: str = name) -> None:
            tell((number + share) / len(names), f"{name}, {number + 1} of {len(names)}: {text}")

        told(0.0, "loading")
        try:
            loaded = load_task(task, name, seed, **given)
            found = advise(loaded, seed=seed, engine=engine, progress=told, **options)
            turns.append(Turn(name, found))
        except OptionError:
            raise
        except FedbridgeError as error:
            turns.append(Turn(name, None, str(error).rstrip(".")))
    measured = [turn.advice for turn in turns if turn.advice is not None]
    if not measured:
        raise FedbridgeError(f"No site could be measured; {turns[0].target}: {turns[0].why}.")
    return AdviceMatrix(measured[0].task, seed, tuple(turns))


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
