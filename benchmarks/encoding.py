"""What smaller messages cost in accuracy: the tables in docs/deploy.md.

    python benchmarks/encoding.py [--task heart] [--target va] [--rounds 20] [--seeds 5]
                                  [--methods fedavg,fedda-joint,auto] [--steps 20]
                                  [--codecs float32,bfloat16,int8,forgetful,jitter]

First the error of one message over the lengths of chunks and both ways of rounding, relative to
the length of an update of the first round; then accuracy and bytes of whole runs under every codec,
``forgetful`` is int8 without error feedback; ``jitter`` no codec but a random change of 1e-5 of a
vector's length, to tell what a codec does from what any change at all does to a run. Prints
tables in Markdown.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from wire import mean_and_spread, run_over_wire

import fedbridge as fb
from fedbridge.federation.federation import Federation
from fedbridge.federation.settings import split_options
from fedbridge.flower.codec import CHUNK, CODECS, Feedback, encode
from fedbridge.models import build_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from wire import Scores, Transmit

    from fedbridge.training.job import ClientResult, Job
    from fedbridge.training.trainer import Workbench

FORGETFUL, JITTER = "forgetful", "jitter"


def written_as(codec: str) -> str:
    """The codec whose bytes are sent."""
    return {FORGETFUL: "int8", JITTER: "float32"}.get(codec, codec)


def over(codec: str, _: Workbench) -> Transmit:
    """A wire with one site's memory per client; every call is a round of that client."""
    sites: dict[int, tuple[Feedback, int]] = {}
    generator = torch.Generator().manual_seed(0)

    def arriving(vector: Tensor, key: str, feedback: Feedback, round: int) -> Tensor:
        if codec == JITTER:
            change = torch.randn(vector.shape, generator=generator)
            return torch.add(vector, 1e-5 * vector.norm() / change.norm() * change)
        if codec == FORGETFUL:
            return encode(vector, "int8").decoded
        return feedback.encode(key, round, vector).decoded

    def transmit(
        client: int, jobs: Sequence[Job], works: Sequence[ClientResult], _: Tensor
    ) -> list[ClientResult]:
        feedback, past = sites.get(client, (Feedback(written_as(codec)), 0))
        sites[client] = feedback, past + 1
        return [
            work
            if work.outcome.failure is not None
            else replace(
                work,
                vector=arriving(work.vector, f"{job.kind} {job.slot}", feedback, past + 1),
            )
            for job, work in zip(jobs, works, strict=True)
        ]

    return transmit


def rounding_errors(task: fb.FederatedTask, steps: int | None) -> None:
    """Print the error of one int8 message, for updates of the sources' first round."""
    torch.manual_seed(0)
    options = {"workers": 1, "steps": steps}
    settings, _ = split_options(options, "fedavg", (), task.defaults)
    federation = Federation(task, build_model(task.model, task), settings, seed=0)
    updates = federation.gather(1, federation.initial, noise="none")[0].rows
    generator = torch.Generator().manual_seed(0)

    def error(chunk: int, shift: bool) -> float:
        errors = []
        for update in updates:
            chunks = functional.pad(update, (0, -len(update) % chunk)).view(-1, chunk)
            step = (chunks.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
            offset = torch.rand(chunks.shape, generator=generator) if shift else 0.5
            lost = (chunks / step + offset).floor() * step - chunks
            errors.append(float(lost.norm() / update.norm()))
        return sum(errors) / len(errors)

    print(f"\n{task.name}: error of one int8 message, percent of the update's length\n")
    print(
        "| entries per chunk | nearest | random | bytes of a chunk / float32 |\n|---|---|---|---|"
    )
    for chunk in (64, 256, 1024, 4096):
        print(
            f"| {chunk}{' (ours)' if chunk == CHUNK else ''} | {100 * error(chunk, False):.2f} "
            f"| {100 * error(chunk, True):.2f} | {(chunk + 4) / (4 * chunk):.3f} |"
        )


def cell(found: Sequence[Scores], exact: Sequence[Scores]) -> str:
    """Accuracy, and how far the codec moved a run at most: in accuracy, and in its test loss."""
    pairs = list(zip(found, exact, strict=True))
    moved = max(abs(ours.accuracy - theirs.accuracy) for ours, theirs in pairs)
    drift = max(abs(ours.loss / theirs.loss - 1) for ours, theirs in pairs)
    spread = mean_and_spread([scores.accuracy for scores in found])
    return spread if found is exact else f"{spread}; {moved:.1f}; {100 * drift:.2f}%"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", default="digits-noise")
    parser.add_argument("--target")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default="fedavg,fedda-joint,auto")
    parser.add_argument("--steps", type=int, help="local steps of a source, for a shorter run")
    parser.add_argument("--codecs", default=",".join((*CODECS, FORGETFUL)), help="first: exact")
    given = parser.parse_args()
    tasks = [
        fb.load_task(given.task, target=given.target, seed=seed) for seed in range(given.seeds)
    ]
    rounding_errors(tasks[0], given.steps)
    size = fb.Blocks.of_model(build_model(tasks[0].model, tasks[0])).total
    print(f"\n{given.task}, {given.rounds} rounds, {given.seeds} seeds:")
    print("accuracy, mean (std); largest change of a run's accuracy; of its test loss\n")
    codecs = given.codecs.split(",")
    print("| method | " + " | ".join(codecs) + " |\n|---|" + "---|" * len(codecs))
    for method in given.methods.split(","):
        exact: list[Scores] = []
        cells = []
        for codec in codecs:
            found = [
                run_over_wire(
                    task, method, given.rounds, seed, partial(over, codec), steps=given.steps
                )
                for seed, task in enumerate(tasks)
            ]
            exact = exact or found
            cells.append(cell(found, exact))
        print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)
    layouts = [CODECS[written_as(codec)].layout(size).values() for codec in codecs]
    shares = [sum(d.itemsize * n for d, n in layout) / (4 * size) for layout in layouts]
    print("| bytes up / float32 | " + " | ".join(f"{share:.3f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
