"""Options of runs, methods and tasks, which the command line takes by name without knowing them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedbridge.errors import UnknownOptionError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence


def sort_options(args: Namespace, methods: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of runs and methods, and those that are left for the task."""
    from fedbridge.methods import options_of
    from fedbridge.settings import NAMES

    options = args.options | ({} if args.workers is None else {"workers": args.workers})
    known = {*NAMES, *(option for method in methods for option in options_of(method))}
    if getattr(args, "engine", "local") != "local":
        from fedbridge.engines.flower.options import NETWORK, PRIVACY

        known |= {*NETWORK, *PRIVACY}
    of_run = {name: value for name, value in options.items() if name in known}
    return of_run, {name: value for name, value in options.items() if name not in known}


@contextmanager
def run_options_named() -> Iterator[None]:
    """An option that the task does not have may be a misspelt one of the run: name those too."""
    try:
        yield
    except UnknownOptionError as error:
        from fedbridge.settings import NAMES

        raise UnknownOptionError(f"{error} Options of every run: {', '.join(NAMES)}.") from error
