"""What sketches of fixed size cost in precision: the two tables in docs/theory.md.

    python benchmarks/sketch_error.py [noise | joint]

**noise**: along the sources. The target of a 44,426-parameter model sees 25 batches; its noise is
isotropic or lies in a few directions. Exact ``v_i`` against those from sketches, over 20 seeds:
mean and root mean square of the error in percent of ``σ̂²``, and what that does to FedGP_Auto's
weight.

**joint**: the weights of joint rules among 1000 sources, whose angles are sketched, against those
of the exact Gram matrix: how much of the weight lies elsewhere, and what that costs in the estimate
of the squared error that the rules minimise, beside what ``fedda-auto`` would cost.
"""

from __future__ import annotations

import sys

import torch

import fedbridge as fb
from fedbridge.core import sketch as sketching
from fedbridge.core.estimators import noise_from_sketches
from fedbridge.core.geometry import Noise
from fedbridge.core.rules import fedda_auto, fedda_joint, fedgp_joint

PARAMETERS, BATCHES, SOURCES, SEEDS, MANY = 44_426, 25, 9, 20, 1000


def batch_updates(rank: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Batch updates around a common gradient, and sources near the noisy directions."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    truth = normal(PARAMETERS)
    if rank is None:
        return truth + 3 * normal(BATCHES, PARAMETERS), truth + 2 * normal(SOURCES, PARAMETERS)
    directions = normal(rank, PARAMETERS)
    noise = normal(BATCHES, rank) @ directions
    return truth + noise, truth + normal(SOURCES, rank) @ directions


def many_sources(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A noisy target, 1000 sources, and the noise: sources alike, in groups, or of low rank."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    truth = normal(PARAMETERS)
    if kind == "alike":
        sources = truth + 2 * normal(MANY, PARAMETERS)
    elif kind == "ten groups":
        groups = truth + 1.5 * normal(10, PARAMETERS)
        sources = groups[torch.arange(MANY) % 10] + normal(MANY, PARAMETERS)
    else:
        directions = normal(20, PARAMETERS)
        sources = truth + 0.5 * normal(MANY, 20) @ directions + 0.3 * normal(MANY, PARAMETERS)
    return truth + 2 * normal(PARAMETERS), sources, 4.0 * PARAMETERS


def joint() -> None:
    """Print the table of joint weights."""
    blocks = fb.Blocks.whole(PARAMETERS)
    print("| 1000 sources | rule | numbers each | weight elsewhere | b | error, % of sigma2 |")
    print("|---|---|---:|---:|---:|---:|")
    for kind in ("alike", "ten groups", "20 directions"):
        target, sources, sigma2 = many_sources(kind, 0)
        noise = Noise(torch.tensor([sigma2], dtype=torch.float64))
        exact = fb.measure(target, sources, blocks, noise=noise)

        def shown(mix: fb.Mix, exact: fb.Geometry = exact, sigma2: float = sigma2) -> str:
            error = 100 * fb.theory.estimated_delta(mix, exact) / sigma2
            return f"{1 - float(mix.target):.3f} | {error:.1f}"

        print(f"| {kind} | `fedda-auto` | all | | {shown(fedda_auto(exact))} |")
        for name, rule in (("fedda-joint", fedda_joint), ("fedgp-joint", fedgp_joint)):
            best = rule(exact)
            print(f"| {kind} | `{name}` | all | 0 | {shown(best)} |")
            for size in (512, 1024, 2048, 4096):
                sketching.ANGLES = size
                seen = fb.measure(target, sources, blocks, noise=noise, reads="sketched")
                found = rule(seen)
                moved = (found.sources - best.sources).abs().sum() / best.sources.sum() / 2
                print(f"| {kind} | `{name}` | {size} | {float(moved):.0%} | {shown(found)} |")


def noise() -> None:
    """Print the table of noise along the sources."""
    blocks = fb.Blocks.whole(PARAMETERS)
    print(
        "| noise | sketch size | kilobytes | v, % of sigma2 | mean error | rms error | beta rms |"
    )
    print("|---|---|---|---|---|---|---|")
    for label, rank in (("isotropic", None), ("10 directions", 10)):
        batches, sources = batch_updates(rank)
        mean, measured = fb.measure_noise(batches, sources, blocks)
        assert measured is not None
        geometry = fb.measure(mean, sources, blocks, noise=measured)
        sigma2, exact = measured.sigma2[0], geometry.along()[0]
        beta = sigma2 / (geometry.line2[0] + exact).clamp(min=float(sigma2))
        for size in (16, 64, 256, 1024):
            errors, betas = [], []
            for seed in range(SEEDS):
                sketch = fb.Sketch(blocks, size=size, seed=seed)
                stream = fb.NoiseStream(blocks, sketch=sketch)
                for update in batches:
                    stream.add(update)
                sketches = torch.stack(stream.sketches)
                found = noise_from_sketches(
                    sketch, sketches, sources, geometry.inner, measured.sigma2
                )
                assert found.covariance is not None
                v = found.covariance[0].diagonal() / geometry.source2[0]
                errors.append((v - exact) / sigma2)
                used = geometry.line2[0] + v.clamp(min=0.0)
                betas.append(sigma2 / used.clamp(min=float(sigma2)) - beta)
            error, shift = torch.stack(errors), torch.stack(betas)
            kilobytes = 4 * 2 * size * (BATCHES - 1) / 1000
            print(
                f"| {label} | {size} | {kilobytes:.1f} | {100 * exact.mean() / sigma2:.2f} "
                f"| {100 * error.mean():+.2f} | {100 * error.square().mean().sqrt():.2f} "
                f"| {shift.square().mean().sqrt():.4f} |"
            )
    print(f"\nThe {BATCHES} batch updates themselves: {4 * PARAMETERS * BATCHES / 1e6:.1f} MB.")


if __name__ == "__main__":
    for table in sys.argv[1:] or ("noise", "joint"):
        {"noise": noise, "joint": joint}[table]()
