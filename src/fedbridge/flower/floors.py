"""What a site never does, whoever asks: floors of its own, in its own file, that no message lowers.

An update is a sum over the rows that it was made from. Of a single row it is that row, near enough,
and whoever asks for enough sums of a few rows each can solve for the rows. A coordinator chooses
batches, steps, seeds and the number of jobs; so a site sees to it that every vector stands on many
rows, that a message holds few vectors, all made in one way, and that messages come to an end.

A model that was made to single a row out gets around all of this, and so do differences of many
messages. Against these only ``privacy`` helps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from filelock import FileLock

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import PRIVATE, parse_json, to_json, write_atomically
from fedbridge.base.options import check_known, check_whole
from fedbridge.flower.messages import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from fedbridge.training.job import Job, LocalPlan

NO_LIMIT = 10**9
EXACT = 1e-9
TINY = 4
"""A site of fewer than so many smallest batches may train on smaller ones."""


def _least(name: str) -> int:
    """The least that a floor can be: statistics of features leave only a site that asks for it."""
    return 0 if name == "most-statistics" else 1


@dataclass(frozen=True)
class Floors:
    """The least and the most that a site lets itself be asked for.

    Attributes:
        least_batch: rows of a batch; batches are told apart by sketches, which stay at the site if
            one of them has fewer.
        least_rows: rows that a vector stands on; half of them where the site has few.
        most_jobs: vectors of a message.
        most_records: records of a message, such as models.
        most_steps: steps of all jobs of a message together.
        most_epochs: passes of a job over its rows.
        most_rounds: messages to train, and as many to measure, over all runs.
        most_statistics: answers with means and covariances of features, over all runs.
    """

    least_batch: int = 2
    least_rows: int = 8
    most_jobs: int = 4
    most_records: int = 8
    most_steps: int = 100_000
    most_epochs: int = 100
    most_rounds: int = 1000
    most_statistics: int = 0

    def __post_init__(self) -> None:
        for name, value in self.config().items():
            check_whole(name, value, least=_least(name), most=NO_LIMIT)

    def config(self) -> dict[str, int]:
        """As a site's settings say it."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items()}

    def weaker(self) -> list[str]:
        """The settings that allow more than the defaults do."""
        usual = Floors().config()
        return [
            f"{name} = {value}"
            for name, value in self.config().items()
            if (value < usual[name] if name.startswith("least") else value > usual[name])
        ]

    def check_jobs(self, asked: Sequence[Job], rows: int, counted: int) -> None:
        """Refuse what lets a vector stand on too few rows, or a message say too much.

        Args:
            asked: the jobs of a message, whose vectors leave.
            rows: all that the site has.
            counted: those whose class has a weight worth mentioning.
        """
        self._at_most("most_jobs", "jobs in a message", len(asked))
        plans = {replace(job.plan, noise="none") for job in asked}
        if len(plans) > 1 or len({job.max_batches for job in asked if job.kind == "probe"}) > 1:
            raise RequestError(
                "Expected all jobs of a message to go by one plan, but got several: their "
                "differences would stand on few of this site's rows."
            )
        every = [*asked, *(job.first for job in asked if job.first is not None)]
        sizes = [(job, rows if job.rows is None else len(job.rows)) for job in every]
        self._at_most("most_steps", "steps in a message", sum(job.steps(n) for job, n in sizes))
        for job, own in sizes:
            plan, steps = job.plan, job.steps(own)
            self._at_most("most_epochs", "passes", -(-steps // plan.batches_per_epoch(own)))
            if rows >= TINY * self.least_batch:
                self._at_least("least_batch", "rows in a batch", self.least_batch, plan.batch_size)
            used = min(own - _left_out(plan, own), steps * plan.batch_size, counted)
            least = min(self.least_rows, self._half(rows))
            self._at_least("least_rows", "rows in an update", least, used)

    def check_choice(self, used: int, rows: int) -> None:
        """Refuse a choice, whose losses leave, that stands on too few of the site's rows."""
        self._at_least(
            "least_rows", "rows to choose by", min(self.least_rows, self._half(rows)), used
        )

    def check_split(self, used: int, rows: int) -> None:
        """Refuse a run that makes a site use hardly any of its rows, and so point at those.

        Half of ``least_rows`` will do, as they do where a site has no more than these.
        """
        least = min(self._half(self.least_rows), self._half(rows))
        self._at_least("least_rows", "rows to train on", least, used)

    def may_be_told_apart(self, job: Job, rows: int) -> bool:
        """Whether sketches of a job's batches may leave: none of these is too small."""
        own = rows if job.rows is None else len(job.rows)
        rest = 0 if _left_out(job.plan, own) else own % job.plan.batch_size
        return min(rest or job.plan.batch_size, own) >= self.least_batch

    def count(self, path: Path, kind: str, floor: str = "most_rounds") -> None:
        """Write a message down before it is answered, in a file that no message can reset."""
        if getattr(self, floor) == NO_LIMIT:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            try:
                known = parse_json(path.read_bytes()) if path.exists() else {}
                answered = check_whole(kind, known.get(kind, 0), least=0) + 1
            except (OSError, ValueError, AttributeError) as error:
                raise FedbridgeError(
                    f"Expected the count of answered messages in {str(path)!r}, but it cannot be "
                    f"read: restore the file, or remove it to count anew."
                ) from error
            self._at_most(floor, f"messages to {kind}", answered)
            write_atomically(path, to_json({**known, kind: answered}), PRIVATE)

    def check_records(self, count: int) -> None:
        """Refuse a message of too many records before any of them is opened."""
        self._at_most("most_records", "records in a message", count)

    def _half(self, rows: int) -> int:
        return max(self.least_batch, -(-rows // 2))

    def _at_least(self, name: str, what: str, least: int, got: int) -> None:
        if got < least:
            raise RequestError(f"Expected at least {least} {what}, but got {got}: {_own(name)}.")

    def _at_most(self, name: str, what: str, got: int) -> None:
        most = getattr(self, name)
        if got > most:
            raise RequestError(f"Expected at most {most} {what}, but got {got}: {_own(name)}.")


def singles_out(weights: Tensor) -> bool:
    """Whether some combination of sums over rows is one row alone.

    Row ``i`` can be solved for where the unit vector ``e_i`` lies in the span of the weights, that
    is, where its leverage (the squared length of its projection) is 1.

    Args:
        weights: (k, n) what every row counts in each of the sums.
    """
    _, sizes, directions = torch.linalg.svd(weights, full_matrices=False)
    span = directions[sizes > EXACT * sizes.max()]
    return bool((span.square().sum(0) > 1 - EXACT).any())


FLOORS = tuple(field.name.replace("_", "-") for field in fields(Floors))
"""What a site's configuration may say of its floors."""

OPEN = Floors(1, 1, *[NO_LIMIT] * 6)
"""None at all, for sites that are all one user's."""


def floors_in(config: Mapping[str, object]) -> Floors:
    """The floors that a site's configuration names, the defaults for the others."""
    check_known([n for n in config if n.startswith(("least", "most"))], FLOORS, "a site's floors")
    given = {
        name: check_whole(name, config[name], least=_least(name))
        for name in FLOORS
        if name in config
    }
    return Floors(**{name.replace("-", "_"): value for name, value in given.items()})


def _left_out(plan: LocalPlan, rows: int) -> int:
    """Rows that a pass leaves out."""
    return rows % plan.batch_size if plan.drop_last and rows >= plan.batch_size else 0


def _own(name: str) -> str:
    return f"this site's own `{name.replace('_', '-')}`, which only its site.toml changes"
