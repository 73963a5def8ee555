"""``python -m fuzz``: run the fuzzers, then say how many cases of every kind there were."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic

from fuzz import world
from fuzz.harness import rng_of, tried
from fuzz.kinds import KINDS


def fuzz(seed: int, cases: dict[str, int], only: int | None = None) -> dict[str, Counter[str]]:
    """Run so many cases of every kind; counts of what became of them, failures printed."""
    root = Path(mkdtemp(prefix="fuzz-cases-"))
    counts: dict[str, Counter[str]] = {name: Counter() for name in cases}
    made = world.world()
    for name, count in cases.items():
        for number in range(count) if only is None else [only]:
            place = root / f"{name}-{number}"
            case, answer, wrong = tried(KINDS[name].kind, rng_of(name, seed, number), place)
            verdict = "failed" if wrong else "refused" if answer.refused else "answered"
            counts[name][verdict] += 1
            if wrong or only is not None:
                print(f"{name} --seed {seed} --case {number}: {'; '.join(wrong) or verdict}")
                print(f"    {case.what[:300]}".encode("ascii", "backslashreplace").decode())
            if only is not None:
                print(answer.out, answer.err, f"{answer.megabytes:.0f} MB", sep="\n")
    world.end(root)
    world.end(made.root)
    world.world.cache_clear()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all cases (default: 0)")
    parser.add_argument("--cases", type=int, help="cases per kind (default: each kind's own)")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="may be repeated")
    parser.add_argument("--case", type=int, help="one case alone, with what it printed")
    args = parser.parse_args()
    begun = monotonic()
    kinds = args.kind or list(KINDS)
    usual = {name: args.cases or KINDS[name].cases for name in kinds}
    counts = fuzz(args.seed, usual, args.case)
    print(f"{'kind':<14}{'cases':>7}{'refused':>9}{'answered':>10}{'failed':>8}")
    for name, found in counts.items():
        told = [found.total(), found["refused"], found["answered"], found["failed"]]
        print(f"{name:<14}{told[0]:>7}{told[1]:>9}{told[2]:>10}{told[3]:>8}")
    failed = sum(found["failed"] for found in counts.values())
    total = sum(found.total() for found in counts.values())
    print(f"{total} cases with seed {args.seed}, {failed} failed, {monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
