"""How the findings of ``fedbridge deploy check`` look in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedbridge.deploy.findings import Report, State

STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


def findings_table(report: Report) -> Table:
    """A row per finding, and in the last line whether all is in order."""
    table = Table(show_lines=not report.ok)
    table.add_column("what", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for finding in report.findings:
        state = Text(finding.state, STYLES[finding.state])
        table.add_row(Text(finding.what), state, Text(finding.said))
    problems = sum(finding.state == "problem" for finding in report.findings)
    table.caption = "all in order" if report.ok else f"{problems} to be put in order"
    return table
