"""Very many sources: their updates are used up in groups, so that a round has no room for all.

Groups are cut by the order of the sources, so that neither the number of workers nor who answers
first changes a bit. Where clients take turns anyway, the next group trains into the memory of the
last one; sites on a network all train at once and are used in the same groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from fedbridge.federation.evidence import Gathered
from fedbridge.federation.lengths import Lengths
from fedbridge.training.job import TARGET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fedbridge.federation.federation import Federation
    from fedbridge.training.job import Job, Outcome
    from fedbridge.training.state import State

T = TypeVar("T")

GROUP = 64
"""Sources whose updates are held at a time."""


def are_many(sources: int) -> bool:
    """Whether so many sources take part that their updates should be used up as they come."""
    return sources > GROUP


@dataclass
class Groups(Generic[T]):
    """A round whose updates are used group by group.

    Every group comes with the target's vector and report; where these are needed and missing,
    nothing is used. A group of which it turns out only later that somebody is to be left
    out is trained again: jobs give the same bits, and its first use is forgotten.

    Attributes:
        federation: whose clients they are.
        round: its number.
        state: the model that all start from.
        jobs: one per client: the target's first, if it is asked, then the sources' in their order.
        use: what is made of a group; its rows are the sources' alone.
        needs_target: whether nothing can be made of it without the target.
    """

    federation: Federation
    round: int
    state: State
    jobs: Sequence[Job]
    use: Callable[[Gathered], T]
    needs_target: bool
    outcomes: list[Outcome] = field(default_factory=list)
    own: Tensor | None = None
    _refused: Mapping[str, str] = field(default_factory=dict)
    _left_out: dict[int, set[str]] = field(default_factory=dict)
    _made: dict[int, T] = field(default_factory=dict)

    def run(self) -> list[T]:
        """Train all; what was made of each group."""
        federation, lengths = self.federation, Lengths(self.federation.settings.longest)
        begin = int(self.asks_target)
        cuts = [slice(k, k + GROUP) for k in range(begin, len(self.jobs), GROUP)]
        cuts = cuts or [slice(begin, begin)]
        for some in [[cut] for cut in cuts] if federation.engine.in_turns else [cuts]:
            first = len(self.outcomes)  # the target's goes with the first group
            jobs = self.jobs[first : some[-1].stop]
            done = federation.run(jobs, [self.state], self.round)
            self.outcomes += done.outcomes
            federation.look_at(lengths, jobs, done)
            if first < begin:
                self.own = done.vectors[0].clone()
            self._refused = federation.refused(lengths, [self.state])
            self.failures()
            for cut in some:
                self._use(cut, done.vectors[cut.start - first : cut.stop - first])
        for cut in cuts:
            if self._left_out[cut.start] != self._unwanted(cut):
                self._use(cut, federation.run(self.jobs[cut], [self.state], self.round).vectors)
        return [self._made[at] for at in sorted(self._made)]

    @property
    def asks_target(self) -> bool:
        """Whether the target is one of the clients."""
        return bool(self.jobs) and self.jobs[0].client == TARGET

    @property
    def believed(self) -> list[Outcome]:
        """The outcomes so far, failures in place of those of clients that are refused."""
        return self.federation.without(self._refused, self.jobs, self.outcomes)

    def failures(self) -> dict[str, str]:
        """Clients whose work has failed, and why; a failure of the target itself ends the run."""
        clients = [job.client for job in self.jobs]
        return self.federation.failures(self.round, clients, self.believed)

    def gathered(self, failures: Mapping[str, str]) -> Gathered:
        """What came back; of the vectors there is only the target's."""
        rows = self.state.parameters[None, :0] if self.own is None else self.own[None]
        return self._part(slice(0, len(self.jobs)), rows, failures)

    def _part(self, cut: slice, rows: Tensor, failures: Mapping[str, str]) -> Gathered:
        """Some of the sources, beside the target."""
        believed = self.believed
        target = believed[0] if self.asks_target and not believed[0].failure else None
        pairs = zip(self.jobs[cut], believed[cut], strict=True)
        there = [(job.client - 1, own) for job, own in pairs if job.client != TARGET]
        sources = tuple((index, own) for index, own in there if not own.failure)
        return Gathered(rows, target, sources, failures, own=self.own)

    def _unwanted(self, cut: slice) -> set[str]:
        """Who is refused of a group, or with it the target."""
        jobs = (*self.jobs[: int(self.asks_target)], *self.jobs[cut])
        return {self.federation.name_of(job.client) for job in jobs} & self._refused.keys()

    def _use(self, cut: slice, rows: Tensor) -> None:
        """Use the rows of a group, but for clients that are refused by what is known so far."""
        self._made.pop(cut.start, None)
        self._left_out[cut.start] = self._unwanted(cut)
        there = [k for k, outcome in enumerate(self.believed[cut]) if not outcome.failure]
        part = self._part(cut, rows if len(there) == len(rows) else rows[there], {})
        if part.sources and (part.target is not None or not self.needs_target):
            self._made[cut.start] = self.use(part)
