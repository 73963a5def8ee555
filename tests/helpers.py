"""What several test files need: small rounds, and a second, naive implementation of every rule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

FIXED = ("source-only", "target-only", "fedavg", "fedda", "fedgp")
NOISE_AWARE = ("fedda-auto", "fedgp-auto", "fedda-joint", "fedgp-joint")
ROBUST = ("fltrust", "median", "trimmed-mean", "zeno")
RULES = FIXED + NOISE_AWARE + ROBUST
SHARES_COUNT = ("source-only", "fedda", "fedgp", "fedda-auto", "fedgp-auto", "fltrust", "zeno")
"""Rules in which the sources' sample counts play a part ('fedavg' counts the target too)."""


def tensor(*values: object) -> Tensor:
    """A float64 tensor of the given numbers or rows."""
    return torch.tensor(values, dtype=torch.float64)


def assert_close(actual: object, expected: object, rtol: float = 1e-12, atol: float = 0.0) -> None:
    """Entry-wise closeness in float64, whatever the types."""
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=rtol,
        atol=atol,
    )


def assert_near(actual: Tensor, expected: Tensor, relative: float = 1e-9) -> None:
    """Closeness of whole vectors: the error is small beside the largest expected entry."""
    assert bool(actual.isfinite().all())
    expected = torch.as_tensor(expected).to(torch.float64)
    assert_close(actual, expected, rtol=0.0, atol=relative * float(expected.abs().max()))


@dataclass(frozen=True)
class Round:
    """The vectors of one round; the target's update is the mean of the batches."""

    batches: Tensor
    sources: Tensor

    @property
    def target(self) -> Tensor:
        return self.batches.mean(0)

    @property
    def largest(self) -> float:
        return float(max(self.target.abs().max(), self.sources.abs().max()))


def random_round(seed: int, n: int = 3, m: int = 6, b: int = 5, noise: float = 1.0) -> Round:
    """A round of normal vectors, the target half way between nothing and the sources."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sources = normal(n, m) + normal(m)
    return Round(sources.mean(0) / 2 + normal(m) + noise * normal(b, m), sources)


SPECIAL = ("generic", "duplicate", "zero source", "opposed", "parallel", "zero target")


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Rounds of few sources in few dimensions, degenerate ones among them."""
    n, m, b = draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(2, 6))
    drawn = random_round(
        draw(st.integers(0, 10**6)), n, m, b, draw(st.sampled_from([0.1, 1.0, 5.0]))
    )
    return degenerate(drawn, draw(st.sampled_from(SPECIAL)))


def degenerate(drawn: Round, kind: str) -> Round:
    """The round with its first source (or its target) made special."""
    batches, sources = drawn.batches.clone(), drawn.sources.clone()
    if kind == "duplicate":
        sources[0] = sources[-1]
    elif kind == "zero source":
        sources[0] = 0.0
    elif kind == "opposed":
        sources[0] = -2.0 * batches.mean(0)
    elif kind == "parallel":
        sources[0] = 3.0 * batches.mean(0)
    elif kind == "zero target":
        batches -= batches.mean(0)
        batches[-1] -= batches.sum(0)
    return Round(batches, sources)


def reference(rule: str, target: Tensor, sources: Tensor, sigma2: float) -> Tensor:
    """Every rule with its default options, on the vectors themselves, one source at a time."""
    t, s = target.numpy().astype(float), sources.numpy().astype(float)
    return torch.from_numpy(_REFERENCES[rule](t, s, sigma2))


def _shrink(t: np.ndarray, point: np.ndarray, sigma2: float) -> np.ndarray:
    apart = float(((t - point) ** 2).sum())
    b = min(1.0, sigma2 / apart) if apart > 0 else float(sigma2 > 0)
    return (1 - b) * t + b * point


def _project(t: np.ndarray, g: np.ndarray) -> np.ndarray:
    return (t @ g) / (g @ g) * g if g.any() else np.zeros_like(g)


def _positive_part(t: np.ndarray, g: np.ndarray) -> np.ndarray:
    return _project(t, g) if t @ g > 0 else np.zeros_like(g)


def _fedgp_auto(t: np.ndarray, g: np.ndarray, sigma2: float) -> np.ndarray:
    off_line = float(((t - _project(t, g)) ** 2).sum())
    beta = min(1.0, sigma2 / off_line) if off_line > 0 else float(sigma2 > 0)
    return (1 - beta) * t + beta * _positive_part(t, g)


def _trust(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    lengths, length = np.linalg.norm(s, axis=1), np.linalg.norm(t)
    useful = (lengths > 0) & (s @ t > 0)
    if not useful.any():
        return np.zeros_like(t)
    cosine = (s[useful] @ t) / lengths[useful] / length
    unit = s[useful] / lengths[useful, None]
    return length * (cosine @ unit) / cosine.sum()


def _best_scored(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    scores = [float(t @ g - 0.005 * (g @ g)) for g in s]
    worst = scores.index(min(scores))
    return (np.delete(s, worst, axis=0) if len(s) > 1 else s).mean(0)


def nearest_in_cone(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The point of the cone of the rows of ``s`` nearest to ``t``, by SciPy."""
    lengths = np.linalg.norm(s, axis=1)
    unit = s[lengths > 0] / lengths[lengths > 0, None]
    return unit.T @ nnls(unit.T, t)[0] if len(unit) else np.zeros_like(t)


def nearest_in_hull(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The point of the convex hull of the rows of ``s`` nearest to ``t``, by trying all faces."""
    best = s[0]
    for size in range(1, len(s) + 1):
        for face in combinations(range(len(s)), size):
            first, edges = s[face[0]], s[list(face[1:])] - s[face[0]]
            inside = np.linalg.lstsq(edges.T, t - first, rcond=None)[0]
            if (inside < -1e-12).any() or inside.sum() > 1 + 1e-12:
                continue
            point = first + inside @ edges
            if ((t - point) ** 2).sum() < ((t - best) ** 2).sum():
                best = point
    return best


_REFERENCES = {
    "source-only": lambda t, s, _: s.mean(0),
    "target-only": lambda t, s, _: t,
    "fedavg": lambda t, s, _: np.vstack((t, s)).mean(0),
    "fedda": lambda t, s, _: np.mean([0.5 * t + 0.5 * g for g in s], axis=0),
    "fedgp": lambda t, s, _: np.mean([0.5 * t + 0.5 * _positive_part(t, g) for g in s], axis=0),
    "fedda-auto": lambda t, s, sigma2: np.mean([_shrink(t, g, sigma2) for g in s], axis=0),
    "fedgp-auto": lambda t, s, sigma2: np.mean([_fedgp_auto(t, g, sigma2) for g in s], axis=0),
    "fedda-joint": lambda t, s, sigma2: _shrink(t, nearest_in_hull(t, s), sigma2),
    "fedgp-joint": lambda t, s, sigma2: _shrink(t, nearest_in_cone(t, s), sigma2),
    "fltrust": lambda t, s, _: _trust(t, s),
    "median": lambda t, s, _: np.median(s, axis=0),
    "trimmed-mean": lambda t, s, _: np.sort(s, axis=0)[len(s) // 5 : len(s) - len(s) // 5].mean(0),
    "zeno": lambda t, s, _: _best_scored(t, s),
}
