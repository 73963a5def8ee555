"""A round of the federation against the bare training loop: ``make bench``.

The Fashion-MNIST CNN (44,426 parameters), 9 sources of 6000 images (93 steps of 64) and a target
of 100: what the paper trains in every round. Two worker processes train 5 and 4 sources. The
yardstick is a plain PyTorch loop of the busier worker's 5 x 93 steps, two such loops at once on
the same machine, since two busy cores are slower than one. Repetitions alternate; the median of
the ratios counts. A round is training and aggregation; evaluation is apart. Also printed: what
measuring the target's noise adds to its own training (only the target, 7 of 844 steps, does so).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from fedbridge.core.blocks import parameter_vector
from fedbridge.data.task import FederatedTask, Site
from fedbridge.federation.federation import Federation
from fedbridge.federation.settings import Settings
from fedbridge.methods import make
from fedbridge.models import build_model
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.trainer import Workbench, one_thread

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NOISE: tuple[Literal["none", "size", "sketch"], ...] = ("none", "size", "sketch")
SOURCES, IMAGES, LABELLED, BATCH, BUSIER = 9, 6000, 100, 64, 5


def make_task() -> FederatedTask:
    """Random images of the right shapes: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)

    def site(name: str, count: int) -> Site:
        images = torch.rand(count, 1, 28, 28, generator=generator)
        return Site(name, images, torch.randint(10, (count,), generator=generator))

    sources = tuple(site(f"source {index}", IMAGES) for index in range(SOURCES))
    return FederatedTask("bench", sources, site("target", LABELLED), site("test", 100), 10)


def bare_loop(task: FederatedTask, pipe: Connection) -> None:
    """Wait for a signal, train 5 sources as anybody would, report the time; again and again."""
    torch.set_num_threads(1)
    model = build_model("cnn", task)
    while pipe.recv():
        begun = time.perf_counter()
        for site in task.sources[:BUSIER]:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
            order = torch.randperm(len(site))
            for rows in order.split(BATCH)[: IMAGES // BATCH]:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(site.x[rows]), site.y[rows])
                loss.backward()
                optimizer.step()
        pipe.send(time.perf_counter() - begun)


def cost_of_noise(task: FederatedTask, repetitions: int) -> None:
    """Print what measuring the noise adds to the target's own training."""
    bench = Workbench(build_model("cnn", task), task)
    start = parameter_vector(bench.model)
    result = torch.empty_like(start)
    plans = {kept: LocalPlan("adam", lr=0.001, epochs=5, noise=kept) for kept in NOISE}
    times: dict[str, list[float]] = {kept: [] for kept in plans}
    with one_thread():
        for _ in range(4 * repetitions):
            for kept, plan in plans.items():
                times[kept].append(bench.run(Job(0, plan, 0), start[None], result).seconds)
    for kept in ("size", "sketch"):
        ratio = statistics.median(a / b for a, b in zip(times[kept], times["none"], strict=True))
        print(f"target's training with the {kept:6} of its noise / without: {ratio:.3f}")


def main() -> None:
    """Print the ratio per rule."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--methods", default="fedda,fedgp-auto,fedda-joint")
    arguments = parser.parse_args()
    task = make_task()
    cost_of_noise(task, arguments.repetitions)
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=bare_loop, args=(task, theirs), daemon=True).start()
        pipes.append(ours)

    def bare() -> float:
        for pipe in pipes:
            pipe.send(True)
        return max(float(pipe.recv()) for pipe in pipes)

    settings = Settings(
        model="cnn",
        optimizer="adam",
        lr=0.001,
        batch_size=BATCH,
        batch_size_target=16,
        workers=2,
    )
    print(f"{'method':16} {'round':>8} {'bare loop':>10} {'ratio':>7}")
    for name in arguments.methods.split(","):
        federation = Federation(task, build_model("cnn", task), settings, seed=0)
        method = make(name, federation, {})
        slots, rows = method.room()
        federation.open(slots=slots, rows=rows)
        method.begin(federation.initial)
        method.run_round(1)
        bare()
        times = []
        for repetition in range(arguments.repetitions):
            yardstick = bare()
            begun = time.perf_counter()
            method.run_round(repetition + 2)
            times.append((time.perf_counter() - begun, yardstick))
        federation.close()
        ratio = statistics.median(ours / theirs for ours, theirs in times)
        ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:16} {ours:7.2f}s {theirs:9.2f}s {ratio:7.2f}")


if __name__ == "__main__":
    main()
