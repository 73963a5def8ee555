"""Local differential privacy: what a site may send so that nobody learns much about its records.

Off unless a site gives a ``LocalPrivacy``. Then everything that a site says about the values of
its rows in a round is one Gaussian mechanism: its k vectors are clipped to ``C/√k`` each, so that
together they are no longer than ``C``, and every entry gets noise ``N(0, (zC)²)``.

**What is protected.** Another data set of the same number of rows can turn any clipped vector
into any other, at a distance of at most ``2C``. So the guarantee holds for every change of a
site's rows, of one record or of all of them, and ``epsilon`` counts with the sensitivity ``2C``:
noise of ``z/2`` sensitivities. Many steps of local training give no smaller bound for a single
record. The number of rows, and with it that of steps, is taken as known.

**What else a site would say** (loss, buffers, the noise of its update, sketches, reports of an
objective, whether and why training broke) depends on the same rows and is withheld: ``release``
is the only door. In place of the measured noise stands that of the mechanism, ``(zC)²`` per
entry, which everybody knows. Whatever is done afterwards with what was released (rounding it for
the wire, what that lost, aggregation) costs no more privacy.

**Randomness** comes from the operating system's generator, number by number. A seed of the run
would be known to the coordinator, and any seed of torch's generator, of which 32 bits count,
could be found by trying from entries that are known not to move. Four draws are added for each
number (in float64, before the sum is rounded), since a single draw of finite precision can betray
what it was added to.

**What was spent.** Every protected message is one more look at the same rows, whoever asks for it
and why: a round that is run again, another run, a coordinator that wants to average the noise
away. So the site itself counts, in a file that no message can reset, and may stop answering at a
budget (``PrivacyBudget``).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import PRIVATE, parse_json, to_json, write_atomically
from fedbridge.base.options import check_known, check_number, check_whole
from fedbridge.training.job import ClientResult, Job, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedbridge.core.blocks import Blocks

FORMAT = 1
DRAWS = 4
"""Normal numbers that are added for one entry of noise from the operating system."""

PIECE = 2**18
"""Entries whose noise is drawn at a time."""


@dataclass(frozen=True)
class LocalPrivacy:
    """How a site protects what it sends.

    Attributes:
        clip: ``C``, the longest that all vectors of a message together may be.
        noise: ``z``, the standard deviation of the noise over ``C``; 0 only clips, and protects
            nothing.
        delta: the chance with which the guarantee may fail; well below one over the rows.
    """

    clip: float
    noise: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_number("clip", self.clip, above=0)
        check_number("noise", self.noise, least=0)
        check_number("delta", self.delta, above=0, below=1)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of every entry, ``zC``."""
        return self.noise * self.clip


SETTINGS = (*(f"dp-{field.name}" for field in fields(LocalPrivacy)), "dp-budget")
"""What a site's configuration may say of its privacy; the budget is the largest epsilon."""


def privacy_in(config: Mapping[str, object]) -> tuple[LocalPrivacy | None, float | None]:
    """How a site's configuration wants its messages protected, and up to which epsilon.

    Raises:
        OptionError: a setting is misspelt, missing or no number. A site that asks for protection
            must never go without because of a slip.
    """
    check_known([n for n in config if n.lower().startswith("dp")], SETTINGS, "a site's privacy")
    given = {name.removeprefix("dp-"): config[name] for name in SETTINGS if name in config}
    if not given:
        return None, None
    for name in ("clip", "noise"):
        if name not in given:
            raise OptionError(
                f"Expected both `dp-clip` and `dp-noise`, but `dp-{name}` is missing."
            )
    numbers = {name: check_number(f"dp-{name}", value) for name, value in given.items()}
    budget = numbers.pop("budget", None)
    return LocalPrivacy(**numbers), budget


def protect(
    vectors: Sequence[Tensor], privacy: LocalPrivacy, generator: torch.Generator | None = None
) -> list[Tensor]:
    """All vectors of one message, clipped and with noise.

    Each gets an equal part ``C/√k`` of the clip, rather than one clip for all of them, so that a
    long gradient does not push a short update aside. A vector that holds NaN or Inf is sent as 0
    with noise.

    Args:
        vectors: float32 vectors, all that leave the site in a round.
        privacy: how.
        generator: for simulations and tests; None draws from the operating system, the only
            choice that protects anything.
    """
    if not vectors:
        return []
    bound = privacy.clip / math.sqrt(len(vectors))
    return [
        _noised(clipped(vector, bound), privacy.deviation, generator).to(torch.float32)
        for vector in vectors
    ]


def release(
    jobs: Sequence[Job],
    results: Sequence[ClientResult],
    privacy: LocalPrivacy,
    blocks: Blocks,
    generator: torch.Generator | None = None,
) -> list[ClientResult]:
    """What may leave a site of its finished work; the rest stays, failures included."""
    vectors = [
        result.vector if result.outcome.failure is None else torch.zeros_like(result.vector)
        for result in results
    ]
    protected = protect(vectors, privacy, generator)
    return [
        ClientResult(_public(job, result.outcome.samples, privacy, blocks), vector)
        for job, result, vector in zip(jobs, results, protected, strict=True)
    ]


def epsilon(privacy: LocalPrivacy, rounds: int, releases_per_round: int = 1) -> float:
    """The ``ε`` of (ε, δ)-differential privacy after so many rounds, for one site.

    Counted by Opacus' accountant (Rényi differential privacy), with a noise of ``z/2`` times the
    sensitivity ``2C``. Warm-up rounds and rounds that were asked for again count as well: what a
    site has really sent is in its ``PrivacyBudget``.
    """
    count = check_whole("rounds", rounds, least=0)
    count *= check_whole("releases_per_round", releases_per_round, least=1)
    return composed_epsilon({privacy.noise: count}, privacy.delta)


def composed_epsilon(releases: Mapping[float, int], delta: float) -> float:
    """The ``ε`` of messages with different noise: how many were sent, by their ``z``."""
    sent = {noise: count for noise, count in releases.items() if count}
    if not sent:
        return 0.0
    if 0.0 in sent:
        return math.inf
    try:
        from opacus.accountants import RDPAccountant  # type: ignore[import-untyped]
    except ImportError as error:
        raise OptionError(
            "Expected the accountant that reports epsilon, but it is not installed: "
            "pip install 'fedbridge[privacy]'."
        ) from error
    accountant = RDPAccountant()
    for noise, count in sent.items():
        for _ in range(count):
            accountant.step(noise_multiplier=noise / 2, sample_rate=1.0)
    together = 1 / math.sqrt(sum(count * (2 / noise) ** 2 for noise, count in sent.items()))
    return max(0.0, float(accountant.get_epsilon(delta, alphas=_orders(together, delta))))


def clipped(vector: Tensor, bound: float) -> Tensor:
    """The vector in float64, shortened to the bound if it is longer; 0 if it is not finite."""
    exact = vector.detach().to("cpu", torch.float64)
    length = float(exact.norm())
    if not math.isfinite(length):
        return torch.zeros_like(exact)
    return exact * (bound / length) if length > bound else exact


def _noised(vector: Tensor, deviation: float, generator: torch.Generator | None) -> Tensor:
    if deviation == 0:
        return vector
    if generator is None:
        noise = unpredictable_normals(len(vector))
    else:
        noise = torch.randn(len(vector), generator=generator, dtype=torch.float64)
    return vector + deviation * noise


def unpredictable_normals(count: int) -> Tensor:
    """Standard normal numbers (float64) from the operating system's random bits."""
    pieces = [_piece_of_normals(min(PIECE, count - start)) for start in range(0, count, PIECE)]
    return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.zeros(0).double()


def _piece_of_normals(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Box and Muller's method: two uniform numbers give two normal ones."""
    pairs = DRAWS * count // 2
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    normals = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    summed: np.ndarray[tuple[int], np.dtype[np.float64]] = normals.reshape(DRAWS, count).sum(0)
    return summed / math.sqrt(DRAWS)


def _public(job: Job, samples: int, privacy: LocalPrivacy, blocks: Blocks) -> Outcome:
    """A report that depends on the job and on the number of rows only."""
    batches = job.noisy_batches(samples)
    sizes = torch.tensor(blocks.sizes, dtype=torch.float64)
    return Outcome(
        samples,
        job.steps(samples),
        job.lr,
        buffers=job.buffers,
        noise=sizes * privacy.deviation**2 if batches else None,
        batches=batches,
    )


def _orders(noise: float, delta: float) -> list[float]:
    """Rényi orders around the best one for a Gaussian mechanism, ``1 + √(2 ln(1/δ)) z``."""
    best = noise * math.sqrt(2 * math.log(1 / delta))
    return [1 + best * 10 ** (k / 50 - 1) for k in range(101)]


class PrivacySpentError(FedbridgeError):
    """One more message would cost more privacy than the site is ready to give."""


class PrivacyBudget:
    """The protected messages of one site, by the size of their noise.

    Args:
        path: a file of the site's own, the same in every run on the same rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def spend(self, privacy: LocalPrivacy, budget: float | None = None) -> None:
        """Write a message down before it is sent.

        Raises:
            PrivacySpentError: the message would go beyond the budget, the largest epsilon that the
                site is ready to give; it is not counted, and must not be sent.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            sent = self._read()
            sent[privacy.noise] = sent.get(privacy.noise, 0) + 1
            if budget is not None:
                cost = composed_epsilon(sent, privacy.delta)
                if not cost <= budget:
                    raise PrivacySpentError(
                        f"Expected to stay within an epsilon of {budget:g}, but one more message "
                        f"would make it {cost:.3g}: stop here, or let the site raise its budget."
                    )
            entries = [{"noise": noise, "messages": count} for noise, count in sorted(sent.items())]
            write_atomically(self.path, to_json({"format": FORMAT, "sent": entries}), PRIVATE)

    @property
    def messages(self) -> int:
        """How many have been sent so far."""
        return sum(self._read().values())

    def epsilon(self, delta: float) -> float:
        """What they have cost together."""
        return composed_epsilon(self._read(), delta)

    def _read(self) -> dict[float, int]:
        try:
            content = parse_json(self.path.read_bytes())
            sent = {float(entry["noise"]): entry["messages"] for entry in content["sent"]}
            sound = content["format"] == FORMAT and all(
                math.isfinite(noise) and noise >= 0 and type(count) is int and count >= 0
                for noise, count in sent.items()
            )
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise FedbridgeError(
                f"Expected the count of protected messages in {str(self.path)!r}, but it cannot be "
                f"read: restore the file, since counting anew would understate what was told."
            )
        return sent
