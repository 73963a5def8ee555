"""Who belongs to a federation as time goes by: a file that changes while a run goes on.

Sources are only ever added at the end, so that everybody keeps the number by which seeds, memories
and histories know him; who leaves keeps his as well, and is not asked any more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import parse_json, read_text, to_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1


@dataclass(frozen=True)
class Members:
    """The sources of a federation.

    Attributes:
        sources: all that ever were, in the order in which they came.
        left: who has left for good, and why.
    """

    sources: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)


def write_members(path: Path, members: Members) -> None:
    """Say who belongs to it; a run that goes on reads it before its next round."""
    write_atomically(path, to_json({"format": FORMAT, **asdict(members)}, indent=1) + "\n")


def read_members(path: Path | None) -> Members:
    """Who belongs to it; nobody is named where there is no such file."""
    if path is None or not path.exists():
        return Members()
    try:
        content = parse_json(read_text(path))
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']!r}")
        left = {str(name): str(why) for name, why in content["left"].items()}
        return Members(tuple(map(str, content["sources"])), left)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FedbridgeError(
            f"Expected the members of the federation in {str(path)!r}, but they cannot be read "
            f"({error}): write them again with `fedbridge deploy check`."
        ) from error


class NewcomersError(FedbridgeError):
    """A round is over and somebody joins: the run goes on with one source more.

    Attributes:
        names: who.
        round: the first round with them.
    """

    def __init__(self, names: tuple[str, ...], round: int) -> None:
        super().__init__(f"{', '.join(names)} joins in round {round}.")
        self.names, self.round = names, round
