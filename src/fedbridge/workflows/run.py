"""``fedbridge.run``: train a federation for its target, and leave a folder one can use."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge import methods
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.options import LARGEST, check_choice, check_whole
from fedbridge.data.load import check_weights, load_task, under_protocol
from fedbridge.data.protocols import FAIR
from fedbridge.data.task import check_is_task
from fedbridge.federation.loop import Run, RunResult
from fedbridge.federation.settings import MANY, split_options
from fedbridge.report import AllResultFiles
from fedbridge.runs.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fedbridge.core.rules import Mix
    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.follow import Callback
    from fedbridge.federation.method import Method

ENGINES = ("local", "flower", "flower-sim")


def run(
    task: FederatedTask | str | Path,
    method: str | type[Method] | Callable[..., Mix] = "auto",
    rounds: int = 50,
    seed: int = 0,
    engine: str = "local",
    out: str | Path | None = None,
    *,
    resume: bool = False,
    unchecked: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> RunResult:
    """Train a federation for its target.

    Args:
        task: a task, or what ``load_task`` takes.
        method: a name of ``fedbridge.methods.names()``, ``module:name`` of one's own, a subclass of
            ``fedbridge.methods.Method``, or the function of a rule.
        rounds: rounds after the warm-up.
        seed: of the initial model and of everything random in training.
        engine: ``local``: clients run in this process and in worker processes. ``flower``: over
            a real network of Flower processes on this machine, with TLS and node keys.
            ``flower-sim``: in Flower's simulation.
        out: folder for configuration, history, checkpoints, model and report; None keeps nothing.
        resume: go on with the run in ``out``, or start it if there is none.
        unchecked: go on with a finished run whose files are not as they were written.
        callbacks: called with every round's record; trackers (``fedbridge.tracking``) are such.
        **options: options of the run (``Settings``) and of the method; ``protocol="paper"`` for
            those of the paper, which also loads a built-in task as the paper does; ``target`` of
            a task that is given by its name.

    Example:
        >>> result = run("digits-noise", method="fedda", rounds=3, workers=1)
        >>> len(result.history)
        3
    """
    check_choice("engine", engine, ENGINES)
    rounds = check_whole("rounds", rounds, least=1, most=MANY)
    seed = check_whole("seed", seed, least=0, most=LARGEST)
    method = methods.known_as(method)
    check_is_task(task)
    protocol, target = options.pop("protocol", None), options.pop("target", None)
    if isinstance(task, str | Path):
        check_weights(task, options.get("model"), {})
        loaded = load_task(task, target, seed, protocol=protocol or FAIR)
    elif target is not None:
        raise OptionError(
            f"Expected a task that is loaded for its target, here {task.target.name!r}, but got "
            f"`target` besides: give it to load_task, or the name of a task to run."
        )
    else:
        loaded = task if protocol is None else under_protocol(task, protocol)
    if engine != "local":
        from fedbridge.flower import run_here

        if methods.is_own(method):
            raise OptionError(
                f"Expected a method that other processes know by its name, but {method!r} is known "
                f"in this one only: install it with an entry point (docs/new-method.md), or use "
                f"the engine 'local'."
            )

        return run_here(
            loaded,
            method,
            rounds,
            seed,
            engine,
            None if out is None else Path(out),
            resume=resume,
            callbacks=callbacks,
            options=options,
        )
    settings, own = split_options(
        options,
        method,
        methods.options_of(method),
        methods.usual_options(method, loaded, options),
        loaded.model,
    )
    folder = None if out is None else RunFolder(Path(out))
    if folder is not None and resume and folder.is_first and settings.batch_size_target is None:
        settings = replace(settings, batch_size_target=settings.batch_size)
    if settings.record_epsilon is not None and settings.record_rounds is None:
        settings = replace(settings, record_rounds=rounds + settings.warmup)
    asked = Run(
        loaded,
        method,
        methods.class_of(method),
        partial(methods.make, method),
        rounds,
        seed,
        settings,
        own,
        callbacks,
        extras=AllResultFiles(),
    )
    with _own_errors(method):
        return asked.go(folder, resume=resume, unchecked=unchecked)


@contextmanager
def _own_errors(method: str) -> Iterator[None]:
    """Say of an error in a method of the user's own that it is one."""
    try:
        yield
    except FedbridgeError:
        raise
    except Exception as error:
        if not methods.is_own(method):
            raise
        raise OwnMethodError(
            f"Expected the method {method!r}, which is your own, to run, but it failed with "
            f"{type(error).__name__}: {error} (--debug shows where)."
        ) from error


class OwnMethodError(FedbridgeError):
    """Code of a user's own that failed in a run."""
