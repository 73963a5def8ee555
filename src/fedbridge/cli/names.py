"""``fedbridge methods`` and ``fedbridge tasks``: what can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.cli.shared import Commands, add_command, results, write_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def add(commands: Commands) -> None:
    """Both commands."""
    add_command(commands, "methods", methods_command)
    add_command(commands, "tasks", tasks_command)


def methods_command(args: Namespace) -> int:
    """All methods with a line each."""
    from fedbridge import methods

    return _list_names([(name, methods.summary_of(name)) for name in methods.names()], args)


def tasks_command(args: Namespace) -> int:
    """All built-in tasks with a line each."""
    from fedbridge.data.load import registry, summary_of

    return _list_names([(name, summary_of(name)) for name in registry.names()], args)


def _list_names(entries: Sequence[tuple[str, str]], args: Namespace) -> int:
    if args.json:
        write_json(dict(entries))
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=False, box=None)
        for name, meaning in entries:
            table.add_row(Text(name), Text(meaning))
        results().print(table)
    return 0
