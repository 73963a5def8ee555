"""How well a sketch of fixed size finds the noise along the sources: the table in docs/theory.md.

The target of a 44,426-parameter model sees 25 batches; its noise is isotropic or lies in a few
directions. Exact ``v_i`` against those from sketches, over 20 seeds: mean and root mean square of
the error in percent of ``σ̂²``, and what that does to FedGP_Auto's weight.
"""

from __future__ import annotations

import torch

import fedbridge as fb
from fedbridge.core.estimators import noise_from_sketches

PARAMETERS, BATCHES, SOURCES, SEEDS = 44_426, 25, 9, 20


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


def main() -> None:
    """Print the table in Markdown."""
    blocks = fb.Blocks.whole(PARAMETERS)
    print(
        "| noise | sketch size | kilobytes | v, % of sigma2 | mean error | rms error | beta rms |"
    )
    print("|---|---|---|---|---|---|---|")
    for label, rank in (("isotropic", None), ("10 directions", 10)):
        batches, sources = batch_updates(rank)
        mean, noise = fb.measure_noise(batches, sources, blocks)
        assert noise is not None
        geometry = fb.measure(mean, sources, blocks, noise=noise)
        sigma2, exact = noise.sigma2[0], geometry.along()[0]
        beta = sigma2 / (geometry.line2[0] + exact).clamp(min=float(sigma2))
        for size in (16, 64, 256, 1024):
            errors, betas = [], []
            for seed in range(SEEDS):
                sketch = fb.Sketch(blocks, size=size, seed=seed)
                stream = fb.NoiseStream(blocks, sketch=sketch)
                for update in batches:
                    stream.add(update)
                sketches = torch.stack(stream.sketches)
                found = noise_from_sketches(sketch, sketches, sources, geometry.inner, noise.sigma2)
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
    main()
