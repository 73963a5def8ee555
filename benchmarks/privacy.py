"""What differential privacy costs in accuracy: the tables in docs/deploy.md.

    python benchmarks/privacy.py [--task heart] [--target va] [--rounds 10] [--seeds 3]
                                 [--methods fedavg,fedda-joint] [--level record] [--clip 1]
                                 [--epsilons 10,3,1] [--who sources] [--clean low-rank]
                                 [--set batch_size=128]

Record-level privacy (``--level record``) trains by gradients that tell of no single row; local
privacy (``--level local``) clips and noises what a site sends in a round. Epsilon is that of one
site after all rounds, for a delta of 1e-5; ``--noises`` names noises of local privacy instead. The
first row sends everything as it is. ``--clean low-rank`` lets the coordinator drop what of every
matrix of a source's update is no larger than noise of the known size alone would be. Noise is drawn
with fixed seeds, so that the table can be had again. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from wire import mean_and_spread, run_over_wire

import fedbridge as fb
from fedbridge.base.values import value_of
from fedbridge.flower.privacy import LocalPrivacy, epsilon, release
from fedbridge.training.accountant import noise_within
from fedbridge.training.job import TARGET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire import Transmit

    from fedbridge.training.job import ClientResult, Job
    from fedbridge.training.trainer import Workbench

DELTA = 1e-5


@dataclass(frozen=True)
class Level:
    """One row of the table: how clients are protected.

    Attributes:
        told: what the row is called.
        local: local privacy; None for none.
        options: of the run.
        clean: whether the coordinator thresholds what arrives.
    """

    told: str
    local: LocalPrivacy | None
    options: dict[str, Any]
    clean: bool = False


def over(level: Level, seed: int, spared: tuple[int, ...], on: Workbench) -> Transmit:
    """A wire on which all clients but the ``spared`` ones protect what they send."""
    generator = torch.Generator().manual_seed(seed)

    def transmit(
        client: int, jobs: Sequence[Job], works: Sequence[ClientResult]
    ) -> Sequence[ClientResult]:
        if client in spared:
            return works
        if level.local is not None:
            works = release(jobs, works, level.local, on.blocks, generator)
        return [cleaned(work, on) for work in works] if level.clean else works

    return transmit


def cleaned(work: ClientResult, on: Workbench) -> ClientResult:
    """A vector without the singular values that noise of the known size alone would have.

    Those of an (a, b) matrix of noise with deviation ``s`` stay below about ``s (√a + √b)``.
    """
    if work.outcome.added is None:
        return work
    vector = work.vector.clone()
    named = [p for p in on.model.parameters() if p.requires_grad]
    for k, (shaped, columns) in enumerate(zip(named, on.blocks.slices(), strict=True)):
        if shaped.ndim < 2:
            continue
        matrix = vector[columns].view(len(shaped), -1)
        deviation = math.sqrt(float(work.outcome.added[k]) / matrix.numel())
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        noise = deviation * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
        vector[columns] = (left * (sizes * (sizes > noise)) @ right).reshape(-1)
    return replace(work, vector=vector)


def ladder(given: argparse.Namespace) -> list[Level]:
    """The rows, the unprotected one first."""
    options = dict(part.split("=", 1) for part in given.set)
    plain = {name: value_of(name, value) for name, value in options.items()}
    rows = [Level("off | –", None, plain)]
    if given.noises:
        for noise in map(float, given.noises.split(",")):
            privacy = LocalPrivacy(given.clip, noise, DELTA)
            told = f"{epsilon(privacy, given.rounds):.3g}" if noise else "∞ (clip only)"
            rows.append(Level(f"{told} | local, z = {noise:g}", privacy, plain))
        return rows
    for most in map(float, given.epsilons.split(",")):
        clean = given.clean == "low-rank"
        if given.level == "record":
            own = {"record_epsilon": most, "record_clip": given.clip, "record_delta": DELTA}
            whose = {**plain, **own, "record_of": given.who}
            rows.append(Level(f"{most:g} | record", None, whose, clean))
        else:
            noise = 2 * noise_within(most, DELTA, 1.0, 1, given.rounds)
            privacy = LocalPrivacy(given.clip, noise, DELTA)
            rows.append(Level(f"{most:g} | local, z = {noise:.3g}", privacy, plain, clean))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", default="digits-noise")
    parser.add_argument("--target")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="fedavg,fedda-joint,auto")
    parser.add_argument("--level", choices=("record", "local"), default="record")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epsilons", default="10,3,1")
    parser.add_argument("--noises", default="")
    parser.add_argument("--who", choices=("all", "sources"), default="sources")
    parser.add_argument("--clean", choices=("none", "low-rank"), default="none")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    given = parser.parse_args()
    tasks = [
        fb.load_task(given.task, target=given.target, seed=seed) for seed in range(given.seeds)
    ]
    spared = (TARGET,) if given.who == "sources" else ()
    methods = given.methods.split(",")
    print(
        f"\n{given.task}, {given.rounds} rounds, {given.seeds} seeds, clip {given.clip:g}", end=""
    )
    print("".join(f", {option}" for option in (*given.set, f"cleaning: {given.clean}")))
    print(f"protected: {given.who}; accuracy, mean (std)\n")
    print("| epsilon | protected | " + " | ".join(f"`{method}`" for method in methods) + " |")
    print("|---|---|" + "---|" * len(methods))
    for level in ladder(given):
        cells = [
            mean_and_spread(
                [
                    run_over_wire(
                        task,
                        method,
                        given.rounds,
                        seed,
                        partial(over, level, seed, spared),
                        **level.options,
                    ).accuracy
                    for seed, task in enumerate(tasks)
                ]
            )
            for method in methods
        ]
        print(f"| {level.told} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
