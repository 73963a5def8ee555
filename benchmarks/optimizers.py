"""Our optimisers on the flat vector against ``torch.optim``, in whole rounds of real tasks.

The same run is made with either, in turn, in one process: same data, batches and seeds, FedAvg,
one worker. Both give the same bits, which is checked. A row is the median of the ratios of
training times, round by round, ours over torch's; below 1 ours is faster. Needs the data of
`fedbridge data fetch heart fashion-mnist`.
"""

from __future__ import annotations

import argparse
import statistics
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

import fedbridge as fb
from fedbridge.core.blocks import parameter_vector
from fedbridge.training import trainer as training
from fedbridge.training.optimizers import make_optimizer

if TYPE_CHECKING:
    from torch import Tensor

    from fedbridge.training.job import LocalPlan

TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "heart": ({"target": "va"}, {"model": "linear"}),
    "digits-noise": ({}, {"model": "mlp"}),
    "fashion-noise": ({"n_target": 100}, {"model": "cnn", "steps": 10, "batch_size": 64}),
}
"""Options of the task and of the run."""

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


def torchs_optimizer(
    plan: LocalPlan, parameters: Tensor, gradient: Tensor
) -> torch.optim.Optimizer:
    """The plan's optimiser as PyTorch has it, on the same memory."""
    vector = torch.nn.Parameter(parameters)
    vector.grad = gradient
    if plan.optimizer in ("sgd", "momentum"):
        momentum = plan.momentum if plan.optimizer == "momentum" else 0.0
        return torch.optim.SGD([vector], plan.lr, momentum, weight_decay=plan.weight_decay)
    kind = torch.optim.AdamW if plan.optimizer == "adamw" else torch.optim.Adam
    return kind([vector], plan.lr, weight_decay=plan.weight_decay)


def seconds(
    task: fb.FederatedTask, options: dict[str, Any], rounds: int, *, ours: bool
) -> tuple[list[float], Tensor]:
    """Training time of every round but the first, and the model that came out."""
    make = make_optimizer if ours else torchs_optimizer
    with mock.patch.object(training, "make_optimizer", make):
        result = fb.run(task, "fedavg", rounds + 1, workers=1, **options)
    return [line["seconds_train"] for line in result.history[1:]], parameter_vector(result.model)


def main() -> None:
    """Print a ratio per task and optimiser."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="of every run (default: 20)")
    parser.add_argument("--repetitions", type=int, default=3, help="of every pair (default: 3)")
    parser.add_argument("--tasks", default=",".join(TASKS))
    arguments = parser.parse_args()
    print(f"{'task':14} {'optimizer':10} {'ours / torch':>12} {'quartiles':>14}  ms per round")
    for name in arguments.tasks.split(","):
        of_task, of_run = TASKS[name]
        task = fb.load_task(name, **of_task)
        for optimizer in OPTIMIZERS:
            options = {"lr": 0.001, **of_run, "optimizer": optimizer}
            ratios, times = [], []
            for _ in range(arguments.repetitions):
                theirs, expected = seconds(task, options, arguments.rounds, ours=False)
                ours, found = seconds(task, options, arguments.rounds, ours=True)
                if not torch.equal(found, expected):
                    raise SystemExit(f"{name}, {optimizer}: the models differ")
                ratios += [own / other for own, other in zip(ours, theirs, strict=True)]
                times += ours
            low, middle, high = statistics.quantiles(ratios, n=4)
            typical = 1000 * statistics.median(times)
            print(f"{name:14} {optimizer:10} {middle:12.3f} {low:6.3f}-{high:.3f} {typical:13.1f}")


if __name__ == "__main__":
    main()
