"""Data sets in the layout of the real ones, of a size that is written in milliseconds."""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

TRAIN_ROWS, TEST_ROWS = 1100, 200
HEART_ROWS = {"cleveland": 60, "hungarian": 50, "switzerland": 30, "va": 40}


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of unsigned bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def labels(rows: int) -> np.ndarray:
    """Ten labels in turn."""
    return np.arange(rows) % 10


def write_idx_set(folder: Path) -> None:
    """MNIST's four files; the first pixel of an image is its label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for stem, rows in (("train", TRAIN_ROWS), ("t10k", TEST_ROWS)):
        pixels = rng.integers(0, 256, (rows, 28, 28))
        pixels[:, 0, 0] = labels(rows)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels(rows))):
            packed = gzip.compress(idx_bytes(array), compresslevel=1)
            (folder / f"{stem}-{kind}-ubyte.gz").write_bytes(packed)


def cifar_bytes(rows: int, seed: int) -> bytes:
    """Records of a label, in turn, and random pixels."""
    records = np.random.default_rng(seed).integers(0, 256, (rows, 1 + 3072), dtype=np.uint8)
    records[:, 0] = labels(rows)
    return records.tobytes()


def write_cifar(folder: Path) -> None:
    """CIFAR-10's six files."""
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for number in range(1, 6):
        (batches / f"data_batch_{number}.bin").write_bytes(cifar_bytes(100, number))
    (batches / "test_batch.bin").write_bytes(cifar_bytes(100, 6))


def heart_line(rng: np.random.Generator, sick: bool) -> list[str]:
    """One complete patient."""
    codes = [str(rng.integers(1, 5)), str(rng.integers(0, 3))]
    figures = [f"{value:.1f}" for value in rng.uniform(50, 200, 8)]
    return [
        *figures[:2],
        codes[0],
        *figures[2:5],
        codes[1],
        *figures[5:8],
        *("?", "?", "?"),
        str(rng.integers(1, 5)) if sick else "0",
    ]


def write_heart(folder: Path) -> None:
    """Four hospitals; every tenth patient lacks the cholesterol."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, rows in HEART_ROWS.items():
        lines = [heart_line(rng, sick=row % 2 == 1) for row in range(rows)]
        for line in lines[::10]:
            line[4] = "?"
        text = "".join(f"{','.join(line)}\n" for line in lines)
        (folder / f"processed.{name}.data").write_text(text)


def write_all(root: Path) -> None:
    """Everything that the built-in tasks on arrays and tables read."""
    write_idx_set(root / "fashion-mnist")
    write_idx_set(root / "mnist")
    write_cifar(root / "cifar10")
    write_heart(root / "heart")
