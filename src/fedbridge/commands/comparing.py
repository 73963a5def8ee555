"""How the commands that compare show a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.commands.parts import FAILED, complain, write_json
from fedbridge.errors import FedbridgeError

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from fedbridge.comparison import Comparison


def show_comparison(
    comparison: Comparison, out: Path, args: Namespace, story: str | None = None
) -> int:
    """Write the report, show table, notes and failures; returns the exit status."""
    from fedbridge.report import write_report

    if not comparison.finished:
        said = next(cell.error for cell in comparison.cells if cell.error is not None)
        raise FedbridgeError(f"no run succeeded; the first said: {said}")
    page = write_report(out)
    if args.json:
        told = {} if story is None else {"summary": story}
        write_json({**comparison.to_json(), **told, "out": str(out), "report": str(page)})
    else:
        from fedbridge.report.comparison_tables import comparison_table
        from fedbridge.report.tables import to_terminal
        from fedbridge.show import results

        console = results()
        if comparison.kept:
            console.print(f"{comparison.kept} of {len(comparison.cells)} runs were finished before")
        console.print(to_terminal(comparison_table(comparison), styled=console.is_terminal))
        for text in (*comparison.notes(), *([] if story is None else ["", story, ""])):
            console.print(text)
        console.print(f"report: {page}", soft_wrap=True)
    for cell in comparison.failures:
        complain(f"{cell.setting}, {cell.method}, seed {cell.seed} failed: {cell.error}", FAILED)
    return FAILED if comparison.failures else 0
