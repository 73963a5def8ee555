"""How ``auto`` does against the fixed choices, from no shift to outright conflict.

Embedded digits with the task's own training settings, 40 rounds, seeds 30 to 34 (no choice in the
code was made by looking at these). Prints the Markdown table of docs/methods.md; finished cells
are kept in ``runs/auto-regimes``, so it can be stopped and run again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedbridge.report.result_tables import comparison_table
from fedbridge.report.tables import to_markdown
from fedbridge.workflows.compare import compare
from fedbridge.workflows.compared import Setting

SETTINGS = (
    Setting("no shift", "digits-none"),
    Setting("noise 0.2", "digits-noise", options={"noise": 0.2}),
    Setting("noise 0.4", "digits-noise", options={"noise": 0.4}),
    Setting("turned 30", "digits-rotation", options={"angle": 30.0}),
    Setting("turned 90", "digits-rotation", options={"angle": 90.0}),
    Setting("inverted", "digits-contrast"),
)
METHODS = ("fedavg", "fedda", "fedgp", "fedda-auto", "fedgp-auto", "fedda-joint", "auto")


def main() -> None:
    """Run what is missing and print the table."""
    comparison = compare(SETTINGS, METHODS, range(30, 35), 40, Path("runs/auto-regimes"))
    sys.stdout.write(to_markdown(comparison_table(comparison)))


if __name__ == "__main__":
    main()
