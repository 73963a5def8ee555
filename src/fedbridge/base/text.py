"""Text from data, which may hold anything, on its way to people and their programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

BETWEEN_COLUMNS = 3
"""What a column of a table takes besides its text: a line, and a space on both sides."""
LONGEST = 160
"""Of a line that describes an object."""
_FORMULA = re.compile(r"[=@＝＠]|[+＋－-](?!\d+(\.\d*)?([eE][+-]?\d+)?%?$)")


def plain(text: str) -> str:
    """The text without characters that cannot be seen, which a terminal would obey; lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def one_line(text: str) -> str:
    """The text without line breaks and characters that cannot be seen."""
    return plain(text).replace("\n", " ").strip()


def shortened(name: str, most: int) -> str:
    """A name of at most so many letters: of a longer one both ends, where names differ."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[-end:]}"


def block(first: str, *others: str) -> str:
    """An object in a few lines as Python shows it: what it is, and below it what to know of it."""
    lines = (one_line(first), *(f"  {one_line(line)}" for line in others))
    return "\n".join(
        line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..." for line in lines
    )


def csv_text(text: str) -> str:
    """Text that a spreadsheet does not take for a formula.

    What could be one gets an apostrophe in front, as spreadsheets themselves write text; signed
    numbers such as ``+90%`` cannot do harm and stay as they are.
    """
    shown = one_line(text)
    return f"'{shown}" if _FORMULA.match(shown) else shown


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that draws plain text only: nothing in it is markup or obeyed by the terminal.

    Its tables never break a word.
    """
    from rich.console import Console
    from rich.table import Table

    class PlainConsole(Console):
        """What every piece of text passes on its way out, whoever made it."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            """The segments of anything, each without what a terminal would obey."""
            if isinstance(renderable, Table):
                renderable = unbroken(renderable, (options or self.options).max_width)
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def unbroken(table: Table, width: int) -> RenderableType:
    """The table with columns as wide as their longest words, or its lines one below the other.

    The second where not even the longest words fit beside each other.
    """
    from rich.cells import cell_len
    from rich.console import Group
    from rich.text import Text

    needed = 1
    for column in table.columns:
        texts = [str(column.header), *map(str, column.cells)]
        longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
        column.min_width = max(column.min_width or 0, longest)
        needed += longest + BETWEEN_COLUMNS
    if needed <= width:
        return table
    heads = [f"{column.header}: " if str(column.header) else "" for column in table.columns]
    parts = [] if table.title is None else [Text(str(table.title))]
    for line in zip(*(column.cells for column in table.columns), strict=True):
        said = [f"{head}{cell}" for head, cell in zip(heads, line, strict=True) if str(cell)]
        parts += [Text("\n".join(said)), Text("")]
    return Group(*parts)
