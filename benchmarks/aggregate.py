"""Speed and memory of every rule on the updates of a ResNet-18: ``make bench``.

Compares a rule end to end (check, measure, decide, mix; noise given as ``sigma2``) with the two
bare passes over the same memory that no rule can do without: ``S @ t`` and ``w @ S``. Rounds
interleave all contestants and the median of the per-round ratios counts, because machines are
noisy. Memory is the peak above what the updates take, in units of the updates and without the
resulting vector (Linux only).
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import fedbridge as fb

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

RESNET18_BLOCKS = 62
"""Parameter tensors of a ResNet-18; the benchmark's blocks are of equal size."""


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_bytes(work: Callable[[], object]) -> int | None:
    """Peak memory of one call above what was there before; None where Linux cannot tell."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def field(name: str) -> int:
        line = next(ln for ln in status.read_text().splitlines() if ln.startswith(name))
        return int(line.split()[1]) * 1024

    before = field("VmRSS")
    reset.write_text("5")
    work()
    return field("VmHWM") - before


def main() -> None:
    """Print one line per rule."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=11_700_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    sources = torch.empty(arguments.sources, arguments.parameters).normal_()
    target = torch.empty(arguments.parameters).normal_().add_(sources[0], alpha=0.5)
    weights = torch.full((arguments.sources,), 1 / arguments.sources)
    blocks = split_evenly(arguments.parameters, RESNET18_BLOCKS)

    def bare() -> None:
        sources @ target
        weights @ sources

    def call(rule: str, sizes: list[int] | None) -> Callable[[], Tensor]:
        return lambda: fb.aggregate(rule, target, sources, sigma2=1e6, blocks=sizes)

    contestants = {rule: call(rule, None) for rule in fb.rules.names()}
    contestants |= {f"{r}, {len(blocks)} blocks": call(r, blocks) for r in ("fedgp", "fedgp-joint")}
    bare()
    ratios: dict[str, list[float]] = {name: [] for name in contestants}
    base: list[float] = []
    for _ in range(arguments.rounds):
        for name, work in contestants.items():
            passes = seconds(bare)
            base.append(passes)
            ratios[name].append(seconds(work) / passes)

    size = sources.element_size() * sources.numel()
    print(
        f"{arguments.sources} sources x {arguments.parameters:,} float32, "
        f"{torch.get_num_threads()} threads; two bare passes {statistics.median(base):.3f} s"
    )
    print(f"{'rule':24} {'time / two passes':>18} {'extra memory / updates':>24}")
    for name, work in contestants.items():
        peaks = [peak for _ in range(3) if (peak := peak_bytes(work)) is not None]
        beyond = statistics.median(peaks) - 4 * arguments.parameters if peaks else None
        extra = "-" if beyond is None else f"{beyond / size:.1%}"
        print(f"{name:24} {statistics.median(ratios[name]):18.2f} {extra:>24}")


def split_evenly(total: int, parts: int) -> list[int]:
    """Sizes that add up to ``total`` and differ by at most one."""
    return [total // parts + (index < total % parts) for index in range(parts)]


if __name__ == "__main__":
    main()
