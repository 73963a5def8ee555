"""Honest data and folders, made once, that cases take copies of and spoil."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from PIL import Image

from fedbridge.cli.main import main

ROWS = "".join(
    f"{site},{40 + 3 * k % 17},{k % 5 / 10},{'fm'[k % 2]},{'yes' if k % 3 else 'no'}\n"
    for site in "abc"
    for k in range(24)
)
TABLE = f"site,age,dose,sex,ill\n{ROWS}"
NEW = "age,dose,sex\n44,0.1,f\n51,0.3,m\n"
COLUMNS = ["--target", "a", "--site-column", "site", "--label-column", "ill"]
QUICK = ["--workers", "1", "--model", "linear", "--quiet", "--batch-size", "6"]
RUN = [*COLUMNS, *QUICK, "--rounds", "3", "--method", "fedgp-auto"]


@dataclass(frozen=True)
class World:
    """Where the honest things are.

    Attributes:
        root: of all.
        run: a finished run on the table, and ``other`` with another seed.
        comparison: a finished comparison.
    """

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def other(self) -> Path:
        return self.root / "other"

    @property
    def comparison(self) -> Path:
        return self.root / "comparison"


@cache
def world() -> World:
    """The world of this process, and of those that are forked from it."""
    torch.set_num_threads(1)
    import pretend  # noqa: F401  (Flower takes seconds to import)

    root = Path(mkdtemp(prefix="fuzz-"))
    os.environ["FEDBRIDGE_DATA"] = os.environ["XDG_CACHE_HOME"] = str(root / "data")
    table = root / "t.csv"
    table.write_text(TABLE)
    words = ["run", str(table), *RUN, "--out"]
    _quietly([*words, str(root / "run")])
    _quietly([*words, str(root / "other"), "--seed", "1"])
    few = ["--rounds", "1", "--seeds", "2", "--methods", "fedavg", "--out"]
    _quietly(["compare", str(table), *COLUMNS, *QUICK, *few, str(root / "comparison")])
    return World(root)


def end(root: Path) -> None:
    """Take a world away."""
    shutil.rmtree(root, ignore_errors=True)


def _quietly(words: list[str]) -> None:
    shown, sys.stdout = sys.stdout, StringIO()
    try:
        assert main(words) == 0, words
    finally:
        sys.stdout = shown


def run_words(out: str = "run", *more: str) -> list[str]:
    """The command that wrote the finished run, or one like it."""
    return ["run", str(world().root / "t.csv"), *RUN, "--out", out, *more]


def png(rng: np.random.Generator, size: int = 8) -> bytes:
    """A small image."""
    from io import BytesIO

    data = BytesIO()
    Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(data, "PNG")
    return data.getvalue()
