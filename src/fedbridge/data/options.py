"""Which site a user means by ``target``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.errors import TargetNeededError, UnknownTargetError, nearest

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


def _plain(name: str) -> str:
    """Letters and digits of a name in lower case, behind the word for a sign at its front."""
    sign = {"+": "plus", "-": "minus"}.get(name[:1], "")
    return sign + "".join(filter(str.isalnum, name.casefold()))
