"""What local differential privacy costs in accuracy: the table in docs/deploy.md.

    python benchmarks/privacy.py [--task heart] [--target va] [--rounds 10] [--seeds 5]
                                 [--methods fedavg,fedda-joint] [--clip 0.1]
                                 [--noises 0,0.1,1,4] [--who sources]

Every site (or only the sources) clips what it sends in a round to ``--clip`` and adds noise;
epsilon is that of one site after all rounds, for a delta of 1e-5. The first row sends everything
as it is. Noise is drawn with fixed seeds, so that the table can be had again. Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

import torch
from wire import mean_and_spread, run_over_wire

import fedbridge as fb
from fedbridge.flower.privacy import LocalPrivacy, epsilon, release
from fedbridge.training.job import TARGET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire import Transmit

    from fedbridge.training.job import ClientResult, Job
    from fedbridge.training.trainer import Workbench


def over(
    privacy: LocalPrivacy | None, seed: int, spared: tuple[int, ...], on: Workbench
) -> Transmit:
    """A wire on which all clients but the ``spared`` ones protect what they send."""
    generator = torch.Generator().manual_seed(seed)

    def transmit(
        client: int, jobs: Sequence[Job], works: Sequence[ClientResult]
    ) -> Sequence[ClientResult]:
        if privacy is None or client in spared:
            return works
        return release(jobs, works, privacy, on.blocks, generator)

    return transmit


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", default="digits-noise")
    parser.add_argument("--target")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default="target-only,fedavg,fedda-joint,auto")
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--noises", default="0,0.01,0.03,0.1,0.3,1")
    parser.add_argument("--who", choices=("all", "sources"), default="sources")
    given = parser.parse_args()
    tasks = [
        fb.load_task(given.task, target=given.target, seed=seed) for seed in range(given.seeds)
    ]
    spared = (TARGET,) if given.who == "sources" else ()
    methods = given.methods.split(",")
    ladder = [None, *(LocalPrivacy(given.clip, float(noise)) for noise in given.noises.split(","))]
    print(f"\n{given.task}, {given.rounds} rounds, {given.seeds} seeds, clip {given.clip:g}")
    print(f"protected: {given.who}; accuracy, mean (std)\n")
    print("| noise z | epsilon | " + " | ".join(f"`{method}`" for method in methods) + " |")
    print("|---|---|" + "---|" * len(methods))
    for privacy in ladder:
        cells = [
            mean_and_spread(
                [
                    run_over_wire(
                        task, method, given.rounds, seed, partial(over, privacy, seed, spared)
                    ).accuracy
                    for seed, task in enumerate(tasks)
                ]
            )
            for method in methods
        ]
        told = (
            "off | –" if privacy is None else f"{privacy.noise:g} | {shown(privacy, given.rounds)}"
        )
        print(f"| {told} | " + " | ".join(cells) + " |", flush=True)


def shown(privacy: LocalPrivacy, rounds: int) -> str:
    """Epsilon to three digits."""
    return f"{epsilon(privacy, rounds):.3g}" if privacy.noise else "∞ (clip only)"


if __name__ == "__main__":
    main()
