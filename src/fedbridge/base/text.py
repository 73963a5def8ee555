"""Text from data, which may hold anything, on its way to people and their programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_FORMULA = re.compile(r"[=@＝＠]|[+＋－-](?!\d+(\.\d*)?([eE][+-]?\d+)?%?$)")


def plain(text: str) -> str:
    """The text without characters that cannot be seen, which a terminal would obey; lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def one_line(text: str) -> str:
    """The text without line breaks and characters that cannot be seen."""
    return plain(text).replace("\n", " ").strip()


def csv_text(text: str) -> str:
    """Text that a spreadsheet does not take for a formula.

    What could be one gets an apostrophe in front, as spreadsheets themselves write text; signed
    numbers such as ``+90%`` cannot do harm and stay as they are.
    """
    shown = one_line(text)
    return f"'{shown}" if _FORMULA.match(shown) else shown


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that draws plain text only: nothing in it is markup or obeyed by the terminal."""
    from rich.console import Console

    class PlainConsole(Console):
        """What every piece of text passes on its way out, whoever made it."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            """The segments of anything, each without what a terminal would obey."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)
