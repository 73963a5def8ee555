"""What stands between a site's node and the apps that it is handed: approval, and the log.

A run is a program, and a node executes it. So what a site allows must be asked before any line of
that program runs, and what it answered must be written down by somebody else. ``fedbridge deploy
node`` puts a ``flwr-clientapp`` of its own before Flower's on the node's path, which is this
module: Flower's own process for one message, with three of its steps looked at.

    python -m fedbridge.deploy.guard ...    (the arguments of flwr-clientapp)
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge.deploy.approval import check_approved, run_hash
from fedbridge.deploy.folders import SiteFolder
from fedbridge.deploy.running import PROGRAM
from fedbridge.deploy.site_log import Answered, SiteLog
from fedbridge.flower.internals import (
    flwr_clientapp,
    install_from_fab,
    pull_task_input,
    push_message,
    run_clientapp,
)
from fedbridge.flower.messages import SITE, printable, read
from fedbridge.flower.options import SITE_FOLDER
from fedbridge.flower.transport import record_bytes

if TYPE_CHECKING:
    from flwr.app import Context, Message


class Guard:
    """Looks at one message on its way through a site."""

    def __init__(self, site: SiteFolder) -> None:
        self.site = site
        self.asked: Message | None = None
        self.config: dict[str, Any] = {}
        self.run = self.app = ""

    def pull(self, client: Any) -> Any:
        """Flower's own, keeping what was asked."""
        pulled = pull_task_input(client)
        self.asked, context = pulled[0], pulled[1]
        self.run, self.config = str(context.run_id), dict(context.run_config)
        return pulled

    def install(self, fab: bytes, **more: Any) -> Any:
        """Flower's own, after the app was found to be approved; it is not even unpacked else."""
        self.app = run_hash(fab, self.config)
        check_approved(self.app, self.site.settings().approve)
        return install_from_fab(fab, **more)

    def push(self, client: Any, reply: Message, context: Context) -> None:
        """Flower's own, after the answer is in the log: what cannot be logged does not leave."""
        SiteLog(self.site.log).add(self.answered(reply))
        push_message(client, reply, context)

    def answered(self, reply: Message) -> Answered:
        """What the log says of an answer."""
        assert self.asked is not None
        failed = reply.has_error()
        about = None if failed else reply.content.config_records.get(SITE)
        epsilon = None if about is None else about.get("epsilon")
        return Answered(
            run=self.run,
            app=self.app,
            round=_round(self.asked),
            kind=self.asked.metadata.message_type,
            asked=_size(self.asked),
            bytes=0 if failed else _size(reply),
            answer=printable(f"refused: {reply.error.reason}") if failed else "sent",
            epsilon=epsilon if isinstance(epsilon, float) else None,
        )

    def stand_in(self) -> None:
        """Take the place of Flower's own steps in its process for a message."""
        module = sys.modules[run_clientapp.__module__]
        own = {"pull_task_input": self.pull, "install_from_fab": self.install}
        for name, step in {**own, "push_message": self.push}.items():
            setattr(module, name, step)


def _round(message: Message) -> int | None:
    with suppress(Exception):  # whatever a coordinator sends, the log tells of it
        return int(read(message.content.config_records["config"]["work"])["round"])
    return None


def _size(message: Message) -> int:
    return sum(map(record_bytes, message.content.values()))


def main() -> None:
    """Answer one message."""
    Guard(SiteFolder(Path(os.environ[SITE_FOLDER]))).stand_in()
    sys.argv[0] = PROGRAM
    flwr_clientapp()


if __name__ == "__main__":
    main()
