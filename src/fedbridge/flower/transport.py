"""Carries messages to nodes and brings their answers back, or the reason why there is none.

Flower's own ``send_and_receive`` looks for answers every three seconds; this looks more often,
which is much of a short round. An answer is matched to the message that was sent, because that of
a dead node does not come from the node.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, Message, RecordDict

from fedbridge.flower.internals import ErrorCode
from fedbridge.flower.messages import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.serverapp import Grid

log = logging.getLogger("fedbridge")

POLL_SECONDS = 0.2
WORD_SECONDS = 15.0
"""So often whoever watches hears who is waited for."""
ARRAY_OVERHEAD = 200
"""Bytes of an array's name, type, shape and checksum in a message, about."""
GONE_WRONG = (
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
    ErrorCode.INVALID_FAB,
)
"""Errors of a node that is there and answers; after any other it is gone, or its process is."""
RAISED = re.compile(r"<class '(?:fedbridge\.[\w.]+|(?:.*\.)?(\w+))'>:<'(.*)'>", re.DOTALL)
"""How Flower tells an exception: its class, which is left out where it is our own, and its text."""


@dataclass(frozen=True)
class NoAnswer:
    """Why a node did not answer.

    Attributes:
        reason: in words.
        lost: whether the node itself is gone or silent, rather than its work gone wrong.
        silent: whether it only did not answer in time.
    """

    reason: str
    lost: bool = True
    silent: bool = False


class Transport:
    """Sends, waits, counts bytes.

    Attributes:
        up: bytes of all answers so far.
        down: bytes of all messages so far.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the answers to a round's messages."""
        self.grid, self.timeout = grid, timeout
        self.up = self.down = 0

    def ask(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        group: str,
        *,
        at_most: float | None = None,
        names: Mapping[int, str] | None = None,
    ) -> dict[int, RecordDict | NoAnswer]:
        """Send every node its message and wait for all answers, or until time is up.

        ``at_most`` so many seconds, for messages that need no long work. Where nodes have
        ``names``, those that are waited for are named now and then.
        """
        timeout = self.timeout if at_most is None else min(at_most, self.timeout)
        messages = [
            Message(content, node, kind, ttl=timeout + 60, group_id=group)
            for node, content in contents.items()
        ]
        records = [record for content in contents.values() for record in content.values()]
        once = {id(record): record for record in records}  # several messages share a model
        sizes = {key: record_bytes(record) for key, record in once.items()}
        self.down += sum(sizes[id(record)] for record in records)
        sent = list(self.grid.push_messages(messages))
        nodes = dict(zip(sent, contents, strict=True))
        answers: dict[int, RecordDict | NoAnswer] = {}
        waiting = {number for number in sent if number}
        begun = time.monotonic()
        deadline, word = begun + timeout, begun + WORD_SECONDS
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                answered = reply.metadata.reply_to_message_id
                if answered in waiting:
                    waiting.discard(answered)
                    answers[nodes[answered]] = self._opened(reply)
            if not waiting or time.monotonic() > deadline:
                break
            if names is not None and time.monotonic() > word:
                missing = ", ".join(sorted(names[nodes[number]] for number in waiting))
                passed = time.monotonic() - begun
                log.info("%s: no answer yet from %s (%.0f seconds)", group, missing, passed)
                word += WORD_SECONDS
            time.sleep(POLL_SECONDS)
        silent = NoAnswer(f"no answer within {timeout:g} seconds", silent=True)
        return {node: answers.get(node, silent) for node in contents}

    def _opened(self, reply: Message) -> RecordDict | NoAnswer:
        if reply.has_error():
            reason = printable(" ".join(RAISED.sub(_told, str(reply.error.reason)).split()))
            return NoAnswer(reason or "its node is gone", lost=reply.error.code not in GONE_WRONG)
        self.up += sum(map(record_bytes, reply.content.values()))
        return reply.content


def _told(raised: re.Match[str]) -> str:
    return raised[2] if raised[1] is None else f"{raised[1]}: {raised[2]}"


def record_bytes(record: object) -> int:
    """Bytes of a record as it travels."""
    if isinstance(record, ArrayRecord):
        return sum(len(array.data) + ARRAY_OVERHEAD for array in record.values())
    return len(record.deflate())  # type: ignore[attr-defined]
