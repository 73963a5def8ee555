"""Checks of options that several kinds of task share."""

from __future__ import annotations

from numbers import Real
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from fedbridge.errors import OptionError, TargetNeededError, UnknownTargetError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

SHIFTED_TARGET = "target"
"""What tasks that shift one client call this client."""


def check_target_name(target: str | None, sites: Iterable[str]) -> str:
    """The site that the user means by ``target``; own data have no target of their own.

    Where only one site can be meant, case, spaces and dashes do not matter, and signs may be words:
    ``real-world`` is ``Real World``, and ``minus90``, which a shell likes better, is ``-90%``.
    """
    names = list(sites)
    listed = ", ".join(map(repr, names))
    if target is None:
        raise TargetNeededError(
            f"Expected `target` to name the site that adapts: one of {listed}.", names
        )
    if str(target) in names:
        return str(target)
    alike = [name for name in names if _plain(name) == _plain(str(target))]
    if len(alike) != 1:
        raise UnknownTargetError(
            f"Expected `target` to be a site, but got {target!r}.{nearest(str(target), names)} "
            f"Sites: {listed}."
        )
    return alike[0]


def check_shifted_target(target: str | None) -> None:
    """Refuse any target but the shifted client, for tasks that are made with one target."""
    if target not in (None, SHIFTED_TARGET):
        raise UnknownTargetError(
            f"Expected the target {SHIFTED_TARGET!r}, the shifted client, but got {target!r}: "
            f"leave `target` out."
        )


def check_flag(option: str, value: object) -> bool:
    """The value, or an error when it is neither true nor false."""
    if not isinstance(value, bool):
        raise OptionError(f"Expected `{option}` to be true or false, but got {value!r}.")
    return value


def check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the known ones, and suggest the nearest."""
    if value not in known:
        raise OptionError(
            f"Expected `{option}` to be one of {', '.join(known)}, but got {value!r}."
            f"{nearest(str(value), known)}"
        )


def check_range(option: str, value: object, low: float, high: float) -> float:
    """The value as a float, or an error when it is no number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
        raise OptionError(f"Expected `{option}` in [{low:g}, {high:g}], but got {value!r}.")
    return float(value)


def check_count(option: str, value: object, *, least: int, most: int | None = None) -> int:
    """The value as an int, or an error when it is no whole number in the range."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = index(value)
        if number >= least and (most is None or number <= most):
            return number
    limit = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise OptionError(f"Expected `{option}` to be a whole number {limit}, but got {value!r}.")


def _plain(name: str) -> str:
    """Letters and digits of a name in lower case, behind the word for a sign at its front."""
    sign = {"+": "plus", "-": "minus"}.get(name[:1], "")
    return sign + "".join(filter(str.isalnum, name.casefold()))
