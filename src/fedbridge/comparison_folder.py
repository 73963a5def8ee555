"""The folder of a comparison: what belongs together, and whether it may be gone on with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbridge.files import to_json, write_atomically
from fedbridge.rundir import RunFolderError, read_record
from fedbridge.sign_of_life import FILE as SIGN_OF_LIFE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedbridge.compare import Plan
    from fedbridge.comparison import Comparison

FORMAT = 1
FILE = "comparison.json"


@dataclass(frozen=True)
class ComparisonFolder:
    """Reads and writes the files of one comparison."""

    path: Path

    def claim(self, plan: Plan) -> None:
        """Take the folder for this comparison, or refuse if it holds something else."""
        there = self.read()
        if there is None:
            others = (file for file in self._files() if file.name != SIGN_OF_LIFE)
            if any(others):
                raise RunFolderError(
                    f"Expected an empty or new folder for the comparison, but {self.path} holds "
                    f"other files: choose another with --out."
                )
            return
        different = _differences(there, plan.to_json())
        if different and any((self.path / "cells").glob("*/summary.json")):
            raise RunFolderError(
                f"Expected a folder for this comparison, but {self.path} holds a different one "
                f"(other {', '.join(different)}): choose another folder with --out."
            )

    def _files(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.exists() else []

    def read(self) -> dict[str, Any] | None:
        """The file of the comparison; None if there is none."""
        file = self.path / FILE
        return read_record(file, json.loads, kind="comparison", format=FORMAT)

    def write(self, plan: Plan, comparison: Comparison) -> None:
        """What is known so far."""
        content = {"format": FORMAT, **plan.to_json(), **comparison.to_json()}
        write_atomically(self.path / FILE, to_json(content, indent=1))

    def write_table(self, comparison: Comparison) -> None:
        """The table for a document."""
        write_atomically(self.path / "table.md", comparison.to_markdown())


def _differences(there: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """In what a comparison is another one; settings, methods and seeds may be added."""
    changed = [key for key in ("rounds", "options") if there.get(key) != plan[key]]
    missing = [
        key
        for key in ("tasks", "methods", "seeds")
        if any(entry not in plan[key] for entry in there.get(key, []))
    ]
    return changed + missing
