"""HTML built from pieces that escape themselves.

Names of sites, files and classes come from users' data. A plain string that enters a piece is
always escaped; only what ``tag`` made is taken as it is. So a site called ``<script>`` cannot be
anything but text, whoever writes the next page.
"""

from __future__ import annotations

from html import escape
from typing import TypeAlias


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = str | int | float | None
Attribute: TypeAlias = str | int | float | bool | None

VOID = frozenset({"meta", "link", "br", "input"})


def markup(*children: Child) -> Html:
    """The children one after the other, escaped unless they are HTML; None is nothing."""
    return Html("".join(_piece(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element.

    Args:
        name: Of the element, such as ``td``.
        *children: Text (escaped) and other elements.
        **attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``; None leaves an
            attribute out, True writes its bare name.

    Example:
        >>> tag("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    opened = f"<{name}{''.join(_attribute(key, attributes[key]) for key in attributes)}>"
    return Html(opened if name in VOID else f"{opened}{markup(*children)}</{name}>")


def _piece(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Html) else escape(str(child))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
