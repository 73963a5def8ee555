"""What stands between a site's node and the apps that it is handed: approval, and the log.

A run is a program, and a node executes it. So what a site allows must be asked before any line of
that program runs, and what it answered must be written down by somebody else. ``fedbridge deploy
node`` puts a ``flwr-clientapp`` of its own before Flower's on the node's path, which is this
module: Flower's own process for one message, with three of its steps looked at.

    python -m fedbridge.deploy.guard ...    (the arguments of flwr-clientapp)

A node gives a process a few seconds to show that it lives. So nothing heavy is imported until
Flower's own heartbeat beats.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge.flower.internals import flwr_clientapp, run_clientapp

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Context, Message

    from fedbridge.deploy.folders import SiteFolder
    from fedbridge.deploy.site_log import Answered

PROGRAM = "flwr-clientapp"
"""Flower's program for one message."""

PULL, INSTALL, PUSH = "pull_task_input", "install_from_fab", "push_message"
"""The steps of it that are looked at."""


class Guard:
    """Looks at one message on its way through a site.

    Args:
        flower: Flower's own steps, by name.
        site: whose message it is; None for the one that the environment names.
    """

    def __init__(
        self, flower: dict[str, Callable[..., Any]], site: SiteFolder | None = None
    ) -> None:
        self.flower, self._site = flower, site
        self.asked: Message | None = None
        self.config: dict[str, Any] = {}
        self.run = self.app = ""

    @property
    def site(self) -> SiteFolder:
        """The site's own folder."""
        from fedbridge.deploy.folders import SiteFolder
        from fedbridge.flower.options import SITE_FOLDER

        return self._site or SiteFolder(Path(os.environ[SITE_FOLDER]))

    def pull(self, client: Any) -> Any:
        """Flower's own, keeping what was asked."""
        pulled = self.flower[PULL](client)
        self.asked, context = pulled[0], pulled[1]
        self.run, self.config = str(context.run_id), dict(context.run_config)
        return pulled

    def install(self, fab: bytes, **more: Any) -> Any:
        """Flower's own, after the app was found to be approved; it is not even unpacked else.

        Of any other error only its kind leaves the site: what Flower is told, it sends.
        """
        from fedbridge.deploy.approval import NotApprovedError, check_approved, run_hash

        try:
            self.app = run_hash(fab, self.config)
            check_approved(self.app, self.site.settings().approve)
            return self.flower[INSTALL](fab, **more)
        except NotApprovedError:
            raise
        except Exception as error:
            from fedbridge.flower.client import site_error

            raise site_error(error) from None

    def push(self, client: Any, reply: Message, context: Context) -> None:
        """Flower's own, after the answer is in the log: what cannot be logged does not leave."""
        from fedbridge.deploy.site_log import SiteLog

        SiteLog(self.site.log).add(self.answered(reply))
        self.flower[PUSH](client, reply, context)

    def answered(self, reply: Message) -> Answered:
        """What the log says of an answer."""
        from fedbridge.deploy.site_log import Answered
        from fedbridge.flower.messages import SITE, printable
        from fedbridge.flower.transport import record_bytes

        assert self.asked is not None
        failed = reply.has_error()
        about = None if failed else reply.content.config_records.get(SITE)
        epsilon = None if about is None else about.get("epsilon")
        return Answered(
            run=self.run,
            app=self.app,
            round=_round(self.asked),
            kind=self.asked.metadata.message_type,
            asked=sum(map(record_bytes, self.asked.content.values())),
            bytes=0 if failed else sum(map(record_bytes, reply.content.values())),
            answer=printable(f"refused: {reply.error.reason}") if failed else "sent",
            epsilon=epsilon if isinstance(epsilon, float) else None,
        )


def _round(message: Message) -> int | None:
    from fedbridge.flower.messages import read

    with suppress(Exception):  # whatever a coordinator sends, the log tells of it
        return int(read(message.content.config_records["config"]["work"])["round"])
    return None


def stand_in() -> Guard:
    """Put a guard in the place of Flower's own steps in this process."""
    module = sys.modules[run_clientapp.__module__]
    guard = Guard({name: getattr(module, name) for name in (PULL, INSTALL, PUSH)})
    for name, own in ((PULL, guard.pull), (INSTALL, guard.install), (PUSH, guard.push)):
        setattr(module, name, own)
    return guard


def main() -> None:
    """Answer one message."""
    stand_in()
    sys.argv[0] = PROGRAM
    flwr_clientapp()


if __name__ == "__main__":
    main()
