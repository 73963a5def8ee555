"""A warm process that runs the apps of links and nodes by forking, instead of starting Python anew.

By default Flower starts a new Python for every message, which imports Flower, torch and fedbridge
again: seconds of work before milliseconds of training. A link or node started with
``--isolation process`` leaves its apps to somebody else. That is done here by one process that has
imported everything: each task still gets a process of its own, forked, and starts at once.

    python -m fedbridge.flower.executor --serve http://127.0.0.1:9094 node.log
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, NoReturn

import httpx

from fedbridge.flower.internals import (
    AcquireTaskRequest,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    TaskType,
    mirror_output_to_queue,
    run_clientapp,
    run_serverapp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL = 0.2
APPS = ("fedbridge.flower.client", "fedbridge.flower.server")
"""What every app of ours imports: a child that finds it imported starts at once."""
TASKS = (TaskType.SERVER_APP, TaskType.CLIENT_APP)


class Served:
    """A link or node whose apps are run here.

    Args:
        url: of its Runtime API.
        log: where the output of its apps goes.
        root: certificate of the authority that signed the one of an ``https`` URL.
    """

    def __init__(self, url: str, log: Path, root: bytes | None) -> None:
        scheme, _, self.address = url.partition("://")
        self.insecure = scheme == "http"
        self.root = None if self.insecure else root
        self.log = log
        self.children: set[int] = set()
        self._client = RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.insecure,
            root_certificates=self.root,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedbridge")],
        )

    def look_for_work(self) -> None:
        """Take one task if there is any; one whose link or node is gone has lost its purpose."""
        try:
            reply = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=TASKS))
        except httpx.ConnectError:
            for pid in self.children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        except httpx.HTTPError as error:
            sys.stderr.write(f"{self.address}: {error}\n")
        else:
            if reply.HasField("task") and reply.token:
                if pid := os.fork():
                    self.children.add(pid)
                else:
                    self._work(TaskType(reply.task.type), reply.token)

    def bury(self) -> None:
        """Take note of the apps that have ended."""
        for pid in list(self.children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.children.remove(pid)

    def _work(self, task: TaskType, token: str) -> NoReturn:
        """The life of a child; it must not run its parent's code, nor close its connections."""
        code = 1
        try:
            with self.log.open("ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            if task == TaskType.SERVER_APP:
                output: Queue[str | None] = Queue()
                mirror_output_to_queue(output)
                run_serverapp(self.address, output, token, self.insecure, self.root)
            else:
                run_clientapp(self.address, token, self.insecure, self.root)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else code
        except BaseException:  # whatever it was, the child ends here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def serve(served: Sequence[Served]) -> NoReturn:
    """Run apps until this process is ended."""
    while True:
        for one in served:
            one.bury()
            one.look_for_work()
        time.sleep(POLL)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run apps for the links and nodes that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--serve", nargs=2, action="append", required=True, metavar=("URL", "LOG"))
    parser.add_argument("--root-certificates", type=Path, metavar="FILE")
    parsed = parser.parse_args(arguments)
    for module in APPS:
        importlib.import_module(module)
    root = parsed.root_certificates and parsed.root_certificates.read_bytes()
    serve([Served(url, Path(log), root) for url, log in parsed.serve])


if __name__ == "__main__":
    main()
