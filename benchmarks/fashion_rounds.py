"""How FedAvg over clean sources forgets noisy images: the paper's Source Only, round by round.

    python benchmarks/fashion_rounds.py [--rounds 52] [--seed 1]

A plain PyTorch loop over the sources of ``fashion-noise`` under the paper's protocol (9 sources of
6000 images, Adam at 0.01 made anew in each round, batches of 64), without any of the federation's
code, tested on all test images under five noises. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

import fedbridge as fb
from fedbridge.data.rows import whole
from fedbridge.models import build_model

if TYPE_CHECKING:
    from torch import Tensor

    from fedbridge.data.task import Site

NOISES = (0.0, 0.2, 0.4, 0.6, 0.8)
SHOWN = 5
"""Every so many rounds are shown, and each of the first and last."""


def pixels(site: Site) -> Tensor:
    """All images of a site, in [0, 1]."""
    return whole(site.x, "the images").float() / 255


def main() -> None:
    """Train round by round, and test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=52, help="with the two of the warm-up")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    task = fb.load_task("fashion-noise", seed=arguments.seed, noise=0.4, protocol="paper")
    torch.manual_seed(arguments.seed)
    model = build_model("cnn", task)
    sites = [(pixels(site), site.y) for site in task.sources]
    images, labels = pixels(task.test), task.test.y
    chance = torch.Generator().manual_seed(arguments.seed + 1)

    def accuracy(noise: float) -> float:
        """In percent; the noise is drawn anew."""
        right = 0
        with torch.no_grad():
            for x, y in zip(images.split(1000), labels.split(1000), strict=True):
                noisy = x + noise * torch.randn(x.shape, generator=chance)
                right += int((model(noisy).argmax(1) == y).sum())
        return 100 * right / len(labels)

    print(f"| round | {' | '.join(f'{noise:g}' for noise in NOISES)} |")
    print(f"|---:|{'---:|' * len(NOISES)}")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for done in range(arguments.rounds):
        mean = {name: torch.zeros_like(value) for name, value in state.items()}
        for x, y in sites:
            model.load_state_dict(state)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for rows in torch.randperm(len(x)).split(64):
                loss = functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                mean[name] += value / len(sites)
        state = mean
        model.load_state_dict(state)
        if done < SHOWN or done % SHOWN == 0 or done >= arguments.rounds - SHOWN - 1:
            print(f"| {done + 1} | {' | '.join(f'{accuracy(n):.1f}' for n in NOISES)} |")


if __name__ == "__main__":
    main()
