"""What the method is worth: digits whose sources have some labels of the next digit."""

import sys

import torch
from forgiving import Forgiving

import fedbridge as fb


def with_wrong_labels(share: float, seed: int) -> fb.FederatedTask:
    """Digits with a noisy target; a ``share`` of the sources' labels is one too high."""
    task = fb.load_task("digits-noise", seed=seed)
    chance = torch.Generator().manual_seed(seed)
    sources = {}
    for site in task.sources:
        wrong = torch.rand(len(site.y), generator=chance) < share
        sources[site.name] = (site.x, torch.where(wrong, (site.y + 1) % 10, site.y))
    target, test = task.target, task.test
    return fb.FederatedTask.from_arrays(sources, (target.x, target.y), (test.x, test.y), seed=seed)


def main(rounds: int = 40, seeds: int = 3) -> None:
    """Mean accuracy over seeds, for both losses."""
    print("wrong labels  fedda  forgiving")
    for share in (0.0, 0.2, 0.4):
        means = []
        for method in ("fedda", Forgiving):
            runs = [
                fb.run(
                    with_wrong_labels(share, seed),
                    method,
                    rounds,
                    seed,
                    model="mlp",
                    lr=0.3,
                    batch_size=16,
                    workers=1,
                )
                for seed in range(seeds)
            ]
            means.append(sum(run.accuracy or 0.0 for run in runs) / seeds)
        print(f"{share:12.0%}  {means[0]:5.1f}  {means[1]:9.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
