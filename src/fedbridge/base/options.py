"""Checks of options: the value as it is used, or an error that names the option and its range."""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from fedbridge.base.errors import OptionError, UnknownOptionError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


LARGEST = 2**63 - 1
"""Whole numbers beyond it fit no tensor and no file of other programs."""
MOST_SEEDS = 10_000
"""The most seeds that a comparison has: a larger number was meant as a seed."""


def check_whole(
    name: str, value: object, *, least: int | None = None, most: int | None = None
) -> int:
    """A whole number of any type (numpy's too) from ``least`` to ``most``."""
    # The plain type first: whether something is like it takes long to see.
    if type(value) is int or (isinstance(value, SupportsIndex) and not isinstance(value, bool)):
        number = index(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    limits = "" if least is None else f" of at least {least}"
    limits = limits if most is None else f" from {least} to {most}"
    raise OptionError(f"Expected `{name}` to be a whole number{limits}, but got {value!r}.")


def check_number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number from ``least``, or ``above`` it, to ``most``, or ``below`` it."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # a whole number too large to be one is none either
            number = float(value)
    if (
        math.isfinite(number)
        and (least is None or number >= least)
        and (above is None or number > above)
        and (most is None or number <= most)
        and (below is None or number < below)
    ):
        return number
    words = {"of at least": least, "above": above, "of at most": most, "below": below}
    limits = [f"{word} {limit:g}" for word, limit in words.items() if limit is not None]
    if len(limits) == 2:
        start = f"({above:g}" if least is None else f"[{least:g}"
        end = f"{below:g})" if most is None else f"{most:g}]"
        kind = f"in {start}, {end}"
    else:
        kind = " ".join(["to be a number", *(limits or ["that is finite"])])
    raise OptionError(f"Expected `{name}` {kind}, but got {value!r}.")


def check_flag(name: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise OptionError(f"Expected `{name}` to be true or false, but got {value!r}.")
    return value


def check_choice(name: str, value: object, known: Collection[object]) -> None:
    """Refuse a value that is not one of the known ones, and suggest the nearest."""
    if value not in known:
        texts = [str(choice) for choice in known]
        raise OptionError(
            f"Expected `{name}` to be one of {', '.join(texts)}, but got {value!r}."
            f"{nearest(str(value), texts)}"
        )


def check_known(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuse names of options that ``where`` does not have, and suggest the nearest."""
    for name in given:
        if name not in known:
            raise UnknownOptionError(
                f"Expected options of {where}, but there is no option {name!r}."
                f"{nearest(name, known)} Known: {', '.join(known)}."
            )
