"""What the commands of ``fedbridge deploy`` share."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.errors import FedbridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedbridge.commands.parts import Parser


def add_folder(parser: Parser, help: str) -> None:
    """The folder that a command works on."""
    parser.add_argument("folder", type=Path, metavar="DIR", help=help)


def say(lines: Iterable[str]) -> None:
    """Results, a line each."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def need_flower() -> None:
    """Refuse to go on without the package that deployments run on."""
    if find_spec("flwr") is None:
        raise FedbridgeError(
            "Expected Flower, on which deployments run, but it is not installed: "
            'run pip install "fedbridge[flower]".'
        )
