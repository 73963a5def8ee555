"""Differential privacy of a site: what it may send so that nobody learns much about its records.

Off unless a site asks for it, in one of two ways. Record-level privacy (``RecordPrivacy``) is a way
of training, ``training.record_privacy``. With local privacy (``LocalPrivacy``) everything that a
site says about the values of its rows in a round is one Gaussian mechanism: its k vectors are
clipped to ``C/√k`` each, so that together they are no longer than ``C``, and every entry gets noise
``N(0, (zC)²)``.

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

**Randomness** comes from the operating system's generator (``training.chance``).

**What was spent**, in either way: every protected message is one more look at the same rows,
whoever asks for it and why: a round that is run again, another run, a coordinator that wants to
average the noise away. So the site itself counts, in a file that no message can reset, and may stop
answering at a budget (``PrivacyBudget``).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from filelock import FileLock
from torch import Tensor

from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import PRIVATE, parse_json, to_json, write_atomically
from fedbridge.base.options import check_known, check_number, check_whole
from fedbridge.training.accountant import Look, composed_epsilon
from fedbridge.training.chance import unpredictable_normals
from fedbridge.training.job import ClientResult, Job, Outcome
from fedbridge.training.record_privacy import RecordPrivacy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedbridge.core.blocks import Blocks

FORMAT = 2
"""Of the file of what was spent; 1 knew messages of local privacy alone."""


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

    @property
    def look(self) -> Look:
        """What a message is to the accountant: noise of ``z/2`` times the sensitivity ``2C``."""
        return Look(1.0, self.noise / 2)


LOCAL = (*(f"dp-{field.name}" for field in fields(LocalPrivacy)), "dp-budget")
RECORD = tuple(f"record-{field.name}" for field in fields(RecordPrivacy))
SETTINGS = (*LOCAL, *RECORD)
"""What a site's configuration may say of its privacy; the budget is the largest epsilon."""


def privacy_in(
    config: Mapping[str, object],
) -> tuple[LocalPrivacy | RecordPrivacy | None, float | None]:
    """How a site's configuration wants its rows protected, and up to which epsilon.

    Raises:
        OptionError: a setting is misspelt, missing or no number. A site that asks for protection
            must never go without because of a slip.
    """
    check_known(
        [n for n in config if n.lower().startswith(("dp", "record"))], SETTINGS, "a site's privacy"
    )
    local, record = ([name for name in names if name in config] for names in (LOCAL, RECORD))
    if local and record:
        raise OptionError(
            f"Expected one kind of privacy, but got `{local[0]}`, of local privacy, and "
            f"`{record[0]}`, of record-level privacy: leave one kind out."
        )
    for name in ("dp-clip", "dp-noise") if local else ("record-epsilon", "record-rounds"):
        if (local or record) and name not in config:
            both = "`dp-clip` and `dp-noise`" if local else "`record-epsilon` and `record-rounds`"
            raise OptionError(f"Expected both {both}, but `{name}` is missing.")
    numbers = {name: check_number(name, config[name]) for name in (*local, *record)}
    if local:
        budget = numbers.pop("dp-budget", None)
        return LocalPrivacy(**{n.removeprefix("dp-"): v for n, v in numbers.items()}), budget
    if not record:
        return None, None
    rounds = check_whole("record-rounds", config["record-rounds"], least=1)
    most = numbers["record-epsilon"]
    others = {n: numbers[f"record-{n}"] for n in ("clip", "delta") if f"record-{n}" in numbers}
    return RecordPrivacy(most, rounds, **others), most


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
    return composed_epsilon({privacy.look: count}, privacy.delta)


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


def _public(job: Job, samples: int, privacy: LocalPrivacy, blocks: Blocks) -> Outcome:
    """A report that depends on the job and on the number of rows only."""
    batches = job.noisy_batches(samples)
    sizes = torch.tensor(blocks.sizes, dtype=torch.float64)
    added = sizes * privacy.deviation**2
    return Outcome(
        samples,
        job.steps(samples),
        job.lr,
        buffers=job.buffers,
        noise=added if batches else None,
        batches=batches,
        added=added,
    )


class PrivacySpentError(FedbridgeError):
    """One more message would cost more privacy than the site is ready to give."""

    in_words = "its privacy budget is spent"


class PrivacyBudget:
    """What the protected messages of one site have shown of its rows, by the size of their noise.

    Args:
        path: a file of the site's own, the same in every run on the same rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def spend(self, looks: Mapping[Look, int], delta: float, budget: float | None = None) -> None:
        """Write the looks at the rows down that a message takes, before it is sent.

        Raises:
            PrivacySpentError: the message would go beyond the budget, the largest epsilon that the
                site is ready to give; it is not counted, and must not be sent.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            taken = self._read()
            taken.update(looks)
            if budget is not None:
                cost = composed_epsilon(taken, delta)
                if not cost <= budget:
                    raise PrivacySpentError(
                        f"Expected to stay within an epsilon of {budget:g}, but one more message "
                        f"would make it {cost:.3g}: stop here, or let the site raise its budget."
                    )
            entries = [{**look._asdict(), "looks": n} for look, n in sorted(taken.items())]
            write_atomically(self.path, to_json({"format": FORMAT, "taken": entries}), PRIVATE)

    @property
    def looks(self) -> int:
        """How many have been taken so far: messages, or steps of record-level privacy."""
        return self._read().total()

    def epsilon(self, delta: float) -> float:
        """What they have cost together."""
        return composed_epsilon(self._read(), delta)

    def _read(self) -> Counter[Look]:
        try:
            content = parse_json(self.path.read_bytes())
            if content["format"] == 1:
                entries = [(1.0, float(e["noise"]) / 2, e["messages"]) for e in content["sent"]]
            else:
                known = content["taken"]
                entries = [(float(e["rate"]), float(e["noise"]), e["looks"]) for e in known]
            sound = content["format"] in (1, FORMAT) and all(
                math.isfinite(noise)
                and noise >= 0
                and 0 < rate <= 1
                and type(count) is int
                and count >= 0
                for rate, noise, count in entries
            )
        except FileNotFoundError:
            return Counter()
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise FedbridgeError(
                f"Expected the count of protected messages in {str(self.path)!r}, but it cannot be "
                f"read: restore the file, since counting anew would understate what was told."
            )
        taken: Counter[Look] = Counter()
        for rate, noise, count in entries:
            taken[Look(rate, noise)] += count
        return taken
