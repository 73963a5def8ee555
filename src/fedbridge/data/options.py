"""Checks of options that several kinds of task share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.errors import OptionError, TargetNeededError, UnknownNameError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_target_name(target: str | None, sites: Iterable[str]) -> str:
    """The site that the user means by ``target``; own data have no target of their own."""
    names = list(sites)
    listed = ", ".join(map(repr, names))
    if target is None:
        raise TargetNeededError(
            f"Expected `target` to name the site that adapts: one of {listed}.", names
        )
    if str(target) not in names:
        raise UnknownNameError(
            f"Expected `target` to be a site, but got {target!r}.{nearest(str(target), names)} "
            f"Sites: {listed}."
        )
    return str(target)


def check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the known ones, and suggest the nearest."""
    if value not in known:
        raise OptionError(
            f"Expected `{option}` to be one of {', '.join(known)}, but got {value!r}."
            f"{nearest(str(value), known)}"
        )
