"""What can be asked of a running SuperLink: its nodes and its runs, over its Control API.

The same requests that Flower's command line sends, without a process for each of them. All that
fedbridge knows of Flower's control protocol is in this module.
"""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, cast

import httpx

from fedbridge.base.errors import FedbridgeError
from fedbridge.flower.cluster.programs import without_proxy
from fedbridge.flower.internals import (
    ControlHttpClient,
    Fab,
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    SimulationConfig,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    build_fab_from_disk,
    fab_to_proto,
    user_config_to_proto,
)
from fedbridge.flower.pki import read_public_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fedbridge.flower.internals import Run
    from fedbridge.flower.options import ConfigValue

LAST_OUTPUT_WITHIN = 3.0
Status = Literal["pending", "starting", "running", "completed", "failed", "stopped", "lost"]


class LinkUnreachableError(FedbridgeError):
    """The SuperLink does not answer."""


class LinkRefusedError(FedbridgeError):
    """The SuperLink answered that it will not do what was asked."""


@dataclass(frozen=True)
class Node:
    """A node that the link knows.

    Attributes:
        node_id: its number; a node without a registered key gets a new one at each start.
        name: the name under which its key was registered, empty without authentication.
        public_key: PEM; made up by the node itself without authentication.
        online: whether the link heard of it lately; a killed node counts as online for a while.
        activated: when it last came online.
    """

    node_id: int
    name: str
    public_key: bytes
    online: bool
    activated: str


@dataclass(frozen=True)
class RunState:
    """How far a Flower run is, or how it ended.

    Attributes:
        run_id: its number.
        status: ``completed``, ``failed``, ``stopped``, or ``lost`` when the link ended before
            the run did; otherwise it goes on.
        details: what went wrong, in Flower's words.
        bytes_to_nodes: content sent to the nodes so far, as the link counted it.
        bytes_from_nodes: content received from the nodes.
    """

    run_id: int
    status: Status
    details: str = ""
    bytes_to_nodes: int = 0
    bytes_from_nodes: int = 0

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.status in ("completed", "failed", "stopped", "lost")


class Control:
    """A connection to a link's Control API; ``root`` is the authority's certificate for TLS."""

    def __init__(self, address: str, root: Path | None = None) -> None:
        self.address = address
        with _directly(address):
            self._client = ControlHttpClient.from_server_address(
                server_address=address,
                insecure=root is None,
                root_certificates=None if root is None else root.read_bytes(),
                interceptors=[RuntimeVersionHttpInterceptor(component_name="fedbridge")],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def nodes(self) -> list[Node]:
        """All nodes that the link knows, online or not."""
        with self._spoken_to():
            listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [
            Node(
                node_id=node.node_id,
                name=node.name,
                public_key=node.public_key,
                online=node.status == "online",
                activated=node.last_activated_at,
            )
            for node in listed
        ]

    def register(self, public_key: Path, name: str) -> int:
        """Let the node with this key take part, under this name; its number."""
        request = RegisterNodeRequest(public_key=read_public_key(public_key), name=name)
        with self._spoken_to():
            return self._client.RegisterNode(request).node_id

    def submit(
        self, app: Path, config: Mapping[str, ConfigValue], simulated_nodes: int | None = None
    ) -> int:
        """Start a run of the app in a folder; its number.

        A link that simulates is also told how many nodes, one core each.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower itself uses
            content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab),
            override_config=user_config_to_proto(dict(config)),
            override_federation_config=None
            if simulated_nodes is None
            else SimulationConfig(num_supernodes=simulated_nodes, client_resources_num_cpus=1),
        )
        with self._spoken_to():
            return self._client.StartRun(request).run_id

    def run(self, run_id: int) -> RunState:
        """How far a run is."""
        with self._spoken_to():
            runs = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
        if run_id not in runs:
            raise LinkRefusedError(
                f"Expected the link to know run {run_id}, but it does not: "
                "was it started on another link?"
            )
        return _state(runs[run_id])

    @contextmanager
    def output_to(self, file: Path, run_id: int) -> Iterator[None]:
        """Meanwhile add what a run's ServerApp prints to a file, since the link keeps it."""
        copying = threading.Thread(target=self._copy_output, args=(file, run_id), daemon=True)
        copying.start()
        try:
            yield
        finally:
            copying.join(LAST_OUTPUT_WITHIN)

    def _copy_output(self, file: Path, run_id: int) -> None:
        with suppress(httpx.HTTPError), file.open("a", encoding="utf-8") as log:
            for part in self._client.StreamLogs(StreamLogsRequest(run_id=run_id)):
                log.write(part.log_output)
                log.flush()

    def stop(self, run_id: int) -> None:
        """Stop a run; its ServerApp ends a little later."""
        with self._spoken_to():
            self._client.StopRun(StopRunRequest(run_id=run_id))

    @contextmanager
    def _spoken_to(self) -> Iterator[None]:
        """Turn what can go wrong on the line into our own errors."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise LinkRefusedError(
                f"Expected the link at {self.address} to accept the request, but it answered: "
                f"{error.response.text or error}."
            ) from error
        except httpx.TransportError as error:
            raise LinkUnreachableError(
                f"Expected a SuperLink at {self.address}, but could not talk to it: {error}; "
                "is it running, and is the address right?"
            ) from error


def _state(run: Run) -> RunState:
    status = run.status.sub_status or run.status.status
    return RunState(
        run_id=run.run_id,
        status=cast("Status", status),
        details=run.status.details,
        bytes_to_nodes=run.bytes_sent,
        bytes_from_nodes=run.bytes_recv,
    )


@contextmanager
def _directly(address: str) -> Iterator[None]:
    """Reach a link on this machine without the proxy that may lead to the outside."""
    if not address.startswith(("127.0.0.1:", "localhost:")):
        yield
        return
    before = dict(os.environ)
    os.environ.update(without_proxy(before))
    try:
        yield
    finally:
        for name in without_proxy(before):
            del os.environ[name]
        os.environ.update(before)
