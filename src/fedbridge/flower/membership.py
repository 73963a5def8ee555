"""Which node is which site: asked once, checked, and asked again of every node that is new.

A site says its own name. Where nodes are authenticated that is not enough: the node's key must be
the one that the coordinator has of this site, so that nobody can speak for the target. The name
under which a link has registered a key proves nothing, since a link registers any number of keys
under one name.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, MessageType, MetricRecord, RecordDict

from fedbridge._version import __version__
from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import file_name
from fedbridge.data.task import DistantSite, DistantTask, distant_site
from fedbridge.flower.messages import ALLOWED, CONTROL, SITE, ReplyError, check_fields, printable
from fedbridge.flower.transport import NoAnswer, Transport
from fedbridge.runs.members import read_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from fedbridge.flower.internals import NodeInfo

log = logging.getLogger("fedbridge")

HELLO = MessageType.QUERY
POLL_SECONDS = 0.5
WORD_SECONDS = 15.0
"""So often whoever watches hears who is waited for; sooner when somebody has come."""

HELLO_SECONDS = 60.0
"""A node that does not say who it is within so many seconds, and one more for every node that is
asked with it (simulated ones take turns), holds nobody up any longer."""

QUIET_SECONDS = 300.0
"""It is asked again after so many, as is one that cannot take part, or as soon as it was
started again."""

LONGEST_NAME = 100
MOST, LARGEST = 10**9, 10**8


class MembershipError(FedbridgeError):
    """The sites that are there do not make this federation."""


@dataclass(frozen=True)
class Card:
    """What a site says of itself."""

    name: str
    role: str
    samples: int
    tests: int
    input_shape: tuple[int, ...]
    n_classes: int | None
    outputs: int
    class_names: tuple[str, ...] | None
    unlabelled: int = 0

    @property
    def kind(self) -> tuple[object, ...]:
        """What must be the same at all sites."""
        return self.input_shape, self.n_classes, self.outputs, self.class_names


@dataclass(frozen=True, eq=False)
class MemberSite(DistantSite):
    """A site of a federation, of as many rows as it says when it comes: none before.

    Attributes:
        cards: what every site has said of itself so far.
    """

    cards: Mapping[str, Card] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.cards[self.name].samples if self.name in self.cards else 0


class Membership:
    """The sites of a federation and the nodes that speak for them.

    Args:
        transport: carries messages.
        target, sources: their names, where they are known.
        keys: the site of every public key, as ``file_name`` spells it; None believes every node.
        members: the file in which members may join or leave while a run goes on.

    Attributes:
        left: who has left for good, and why.
        target: name of the target; None until a site says that it is the target.
        sources: names of the sources in order; None until everybody has said hello.
        cards: what every site said of itself.
        nodes: the node of every site that is connected.
        unable: the node of every site that is there but cannot take part, and why.
        notes: what happened, for the history.
    """

    def __init__(
        self,
        transport: Transport,
        target: str | None,
        sources: Sequence[str] | None,
        keys: Mapping[bytes, str] | None = None,
        members: Path | None = None,
    ) -> None:
        self.members, self.left = members, dict[str, str]()
        self.transport, self.target, self.keys = transport, target, keys
        self.sources: tuple[str, ...] | None = None if sources is None else tuple(sources)
        self.cards: dict[str, Card] = {}
        self.nodes: dict[str, int] = {}
        self.unable: dict[str, tuple[int, str]] = {}
        self.notes: list[str] = []
        self._activated: dict[int, str] = {}
        self._refused: set[tuple[int, str]] = set()
        self._agreed: tuple[object, ...] | None = None
        self._next: dict[str, int] = {}
        self._quiet: dict[tuple[int, str], float] = {}

    def gather(self, wait: float, least: int = 2) -> None:
        """Wait until all sites that are named (or enough of them) are there.

        One that says that it cannot take part is not waited for.

        Raises:
            MembershipError: the target or every source is still missing when time is up, or
                cannot take part.
        """
        self.review()
        self._wait_until(lambda: self._complete(least), wait)
        partners = [name for name in self.nodes if name != self.target]
        if self.target not in self.nodes or not partners:
            unable = self.target in self.unable or {*(self.sources or [""])} <= self.unable.keys()
            within = "" if unable else f" within {wait:g} seconds"
            advice = "correct that at the site" if unable else "start their nodes"
            said = f" {' '.join(self.notes)}" if self.notes else ""
            raise MembershipError(
                f"Expected the target{_named(self.target)} and at least one source{within}, but "
                f"only {', '.join(self.nodes) or 'nobody'} came: {advice} and run again.{said}"
            )
        if self.sources is None:
            self.sources = tuple(sorted(partners))

    def review(self) -> tuple[str, ...]:
        """Between rounds, let go of those who have left for good; the names of who may join."""
        said = read_members(self.members)
        for name, why in said.left.items():
            if name in (self.sources or ()) and name not in self.left:
                self.notes.append(f"{name} has left for good: {printable(why)}.")
                self.nodes.pop(name, None)
        for name in self.left:
            if name not in said.left:
                self.notes.append(f"{name} may take part again.")
                self._refused.clear()
        self.left = {name: printable(why) for name, why in said.left.items()}
        return tuple(
            name for name in said.sources if name not in (*(self.sources or ()), *said.left)
        )

    def take_in(self, names: Sequence[str], keys: Mapping[bytes, str] | None) -> None:
        """Add sources, at the end; keys are those of everybody."""
        self.sources, self.keys = (*(self.sources or ()), *names), keys
        self._refused.clear()  # they may have been here too early

    def refresh(self) -> None:
        """Forget nodes that left; ask those that are new who they are.

        A node that was refused is asked again when it has been started again.
        """
        nodes = [*self.transport.grid.get_nodes()]
        there = {node.node_id: node for node in nodes}
        self._activated = {node.node_id: node.last_activated_at for node in nodes}
        self._next = {name: node for name, node in self._next.items() if node in there}
        self.unable = {name: said for name, said in self.unable.items() if said[0] in there}
        for name, node in [*self.nodes.items()]:
            if node not in there:
                self.lose(name)
        refused = {node for node in there if self._start_of(node) in self._refused}
        known = {*self.nodes.values(), *self._next.values(), *refused}
        now = time.monotonic()
        quiet = {start for start, until in self._quiet.items() if now < until}
        strangers = [n for n in there if n not in known and self._start_of(n) not in quiet]
        if self.keys is not None:
            for node in [n for n in strangers if there[n].public_key not in self.keys]:
                strangers.remove(node)
                self._refuse(there[node], "its key is none of those in the sites' folders here")
        if not strangers:
            return
        question = RecordDict({"config": ConfigRecord({"version": __version__})})
        questions = dict.fromkeys(strangers, question)
        names = {node: printable(there[node].name)[:LONGEST_NAME] or str(node) for node in there}
        most = HELLO_SECONDS + len(strangers)
        answers = self.transport.ask(HELLO, questions, "hello", at_most=most, names=names)
        for node, answer in answers.items():
            try:
                self._admit(there[node], answer)
            except ReplyError as error:
                self._turn_away(there[node], str(error))

    def lose(self, name: str, *, silent: bool = False) -> None:
        """A site's node did not answer: whoever has come in its place takes over.

        Without registered keys a node that was restarted is a new one, and its predecessor still
        counts as connected for a while. One that was only ``silent`` keeps its place if nobody
        else has come: it may be slow.
        """
        if silent and name not in self._next:
            return
        node = self.nodes.pop(name, None)
        if node is not None and name in self._next:
            self._refused.add(self._start_of(node))
            self.nodes[name] = self._next.pop(name)

    def wait_for(self, name: str, wait: float) -> None:
        """Give a site that is missing time to come back."""
        self._wait_until(lambda: name in self.nodes, wait)

    def absence(self, name: str) -> str:
        """Why a site that has no node takes no part."""
        if name in self.left:
            return f"has left for good: {self.left[name]}"
        if name not in self.unable:
            return "is not connected"
        return f"cannot take part: {self.unable[name][1]}"

    def _wait_until(self, true: Callable[[], bool], wait: float) -> None:
        begun = time.monotonic()
        said, word = "", begun
        while not true() and time.monotonic() < begun + wait:
            presence, now = self._presence(), time.monotonic()
            if presence != said or now > word:
                log.info("%s (%.0f of %g seconds)", presence, now - begun, wait)
                said, word = presence, now + WORD_SECONDS
            self.refresh()
            if not true():
                time.sleep(POLL_SECONDS)
        if said:
            log.info("%s", self._presence())

    def _presence(self) -> str:
        """Who is there, who is missing and who cannot take part."""
        expected = [name for name in (self.target, *(self.sources or ())) if name is not None]
        away = (*self.nodes, *self.unable, *self.left)
        missing = [name for name in expected if name not in away]
        parts = [f"here: {', '.join(self.nodes) or 'nobody yet'}"]
        parts += [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"{name} {self.absence(name)}" for name in self.unable]
        return "; ".join(parts)

    def task(self, name: str) -> DistantTask:
        """The federation's task, as far as a coordinator knows it.

        A source that is named but has not come yet is expected to be like the others, and has no
        rows until it comes.
        """
        assert self.sources is not None
        assert self.target is not None
        own = self.cards[self.target]
        for card in self.cards.values():
            if card.kind != own.kind:
                raise MembershipError(
                    f"Expected all sites to have samples and labels alike, but {own.name!r} has "
                    f"{_described(own)} and {card.name!r} has {_described(card)}."
                )
        self._agreed = own.kind

        def site(name: str, samples: int = 0) -> DistantSite:
            return distant_site(
                name, samples, own.input_shape, n_classes=own.n_classes, outputs=own.outputs
            )

        def member(name: str) -> MemberSite:
            empty = site(name)
            return MemberSite(name, empty.x, empty.y, cards=self.cards)

        return DistantTask(
            name=name,
            sources=tuple(map(member, self.sources)),
            target=member(self.target),
            test=site(f"{self.target} (test)", own.tests),
            n_classes=own.n_classes,
            class_names=own.class_names,
            n_unlabelled=own.unlabelled,
        )

    def _complete(self, least: int) -> bool:
        if self.target in self.unable:
            return True
        if self.target is None or self.target not in self.nodes:
            return False
        if self.sources is None:
            return len(self.nodes) >= least
        return {*self.sources} <= {*self.nodes, *self.unable, *self.left}

    def _start_of(self, node: int) -> tuple[int, str]:
        """A node by its number, which registered ones keep, and by when it was started."""
        return node, self._activated.get(node, "")

    def _member(self, node: NodeInfo) -> str | None:
        """The site that a node's key is the key of; None where keys say nothing."""
        owner = None if self.keys is None else self.keys.get(node.public_key)
        sites = (self.target, *(self.sources or ()))
        return next((name for name in sites if name and file_name(name) == owner), None)

    def _turn_away(self, node: NodeInfo, reason: str) -> None:
        """Take no answer of a node for a site's; nobody waits for a site that is known by it."""
        site = self._member(node)
        if site is None or site in self.nodes:
            self._refuse(node, reason)
            return
        self._refused.add(self._start_of(node.node_id))
        self._cannot(site, node.node_id, reason)

    def _refuse(self, node: NodeInfo, reason: str) -> None:
        self._refused.add(self._start_of(node.node_id))
        named = f"node {node.node_id}"
        if node.name:
            named += f", registered as {printable(node.name)[:LONGEST_NAME]!r}"
        self.notes.append(f"Refused {named}: {reason}.")

    def _rest(self, node: int) -> None:
        """Leave a node alone for a while, unless it is started again."""
        self._quiet[self._start_of(node)] = time.monotonic() + QUIET_SECONDS

    def _cannot(self, name: str, node: int, reason: str) -> None:
        """Put down why a site that is there takes no part; once, though it is asked again."""
        reason = reason.rstrip(".")
        if self.unable.get(name) != (node, reason):
            self.unable[name] = (node, reason)
            self.notes.append(f"{name} {self.absence(name)}.")

    def _admit(self, info: NodeInfo, answer: RecordDict | NoAnswer) -> None:
        """Take a node for the site that it says it is, or refuse it."""
        node = info.node_id
        if isinstance(answer, NoAnswer):
            site = self._member(info)
            if not answer.lost and site is None:
                raise ReplyError(f"it could not say who it is ({answer.reason})")
            self._rest(node)
            if not answer.lost and site is not None:
                self._cannot(site, node, answer.reason)
            return
        owner = None if self.keys is None else self.keys[info.public_key]
        name = read_name(answer)
        if owner not in (None, file_name(name)):
            raise ReplyError(f"its key is that of {owner!r}, but it claims to be {name!r}")
        if name in self.left:
            raise ReplyError(f"{name!r} has left for good")
        failure = answer.config_records[SITE].get("failure")
        if failure is not None and name in (self.target, *(self.sources or ())):
            self._rest(node)
            self._cannot(name, node, printable(failure))
            return
        card = read_card(answer)
        unclaimed = self.target is None and card.role == "target"
        target = card.name if unclaimed else self.target
        expected = "target" if card.name == target else "source"
        if card.role != expected:
            raise ReplyError(f"{card.name!r} claims to be a {card.role}, but is the {expected}")
        if card.role == "target" and card.tests < 1:
            raise ReplyError("it has no rows to test on")
        self.target = target
        if self.sources is not None and card.name not in (self.target, *self.sources):
            raise ReplyError(f"no site of this federation is called {card.name!r}")
        if card.name in self.cards and self.cards[card.name] != card:
            raise ReplyError(f"{card.name!r} came back with other data than before")
        if self._agreed is not None and card.kind != self._agreed:
            raise ReplyError(f"{card.name!r} has {_described(card)}, unlike the others")
        if card.name in self.nodes:
            self._next[card.name] = node
            return
        if self.unable.pop(card.name, None) or card.name in self.cards:
            self.notes.append(f"{card.name} is back.")
        self.cards[card.name], self.nodes[card.name] = card, node


def read_name(content: RecordDict) -> str:
    """Which site a node says it is, checked."""
    check_fields(content)
    name = content.config_records.get(SITE, ConfigRecord()).get("site")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ReplyError("it does not say which site it is")
    return name


def read_card(content: RecordDict) -> Card:
    """What a site says of itself, checked."""
    name, about = read_name(content), content.config_records[SITE]
    numbers, role = content.metric_records.get("hello", MetricRecord()), about.get("role")
    if role not in ("source", "target"):
        raise ReplyError("it does not say whether it is a source or the target")
    counts = [numbers.get(key) for key in ALLOWED["hello"]]
    if not all(type(count) is int and 0 <= count <= MOST for count in counts):
        raise ReplyError("it does not say how many rows and classes it has")
    samples, tests, classes, outputs, loose = map(int, counts)  # type: ignore[arg-type]
    shape, labels = about.get("input-shape", []), about.get("class-names", [])
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise ReplyError("it does not say what its rows look like")
    if len(shape) > 8 or prod(map(int, shape)) > LARGEST or max(classes, outputs) > LARGEST:
        raise ReplyError("its rows or labels are larger than any model's")
    names = tuple(map(str, labels)) if isinstance(labels, list) else ()
    if len(names) not in (0, classes) or any(map(CONTROL.search, names)):
        raise ReplyError("its names of classes are no names of its classes")
    if samples < 1:
        raise ReplyError("it has no rows")
    return Card(
        name,
        str(role),
        samples,
        tests,
        tuple(map(int, shape)),
        classes or None,
        outputs,
        names or None,
        loose,
    )


def _named(name: str | None) -> str:
    return "" if name is None else f" {name!r}"


def _described(card: Card) -> str:
    labels = "numbers" if card.n_classes is None else f"{card.n_classes} classes"
    return f"samples of shape {card.input_shape} and {labels}"
