"""Flower's programs: their commands, processes that leave none behind, and what a link is asked.

The commands are the same on one machine as between hospitals. A running SuperLink is asked for its
nodes and its runs over its Control API: the same requests that Flower's command line sends, without
a process for each of them. All that fedbridge knows of Flower's control protocol is in this module.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

import httpx

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import parse_toml, read_text
from fedbridge.flower import supervisor
from fedbridge.flower.internals import (
    ControlHttpClient,
    Fab,
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    SimulationConfig,
    StartRunRequest,
    StreamLogsRequest,
    build_fab_from_disk,
    fab_to_proto,
    user_config_to_proto,
)
from fedbridge.flower.pki import Certificates, read_public_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from fedbridge.flower.options import ConfigValue

Isolation = Literal["subprocess", "process"]
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Identity:
    """By what a node trusts the link (``ca.crt``) and by what the link knows the node (its key)."""

    root: Path
    private_key: Path


def link_command(
    host: str,
    port: int,
    *,
    database: Path,
    certificates: Certificates | None,
    isolation: Isolation = "subprocess",
) -> list[str]:
    """Start the SuperLink; with certificates it also accepts only registered nodes.

    Args:
        host: the address to listen on, ``0.0.0.0`` for all of this machine.
        port: the one port for nodes, apps and commands.
        database: keeps nodes and runs over a restart.
        certificates: None for a link without TLS that accepts everybody.
        isolation: whether it starts its apps itself, or leaves that to our executor.
    """
    safety = (
        ["--insecure"]
        if certificates is None
        else [
            "--enable-supernode-auth",
            *("--ssl-ca-certfile", str(certificates.ca)),
            *("--ssl-certfile", str(certificates.server)),
            *("--ssl-keyfile", str(certificates.server_key)),
        ]
    )
    return [
        "flower-superlink",
        *("--host", host),
        *("--port", str(port)),
        *("--database", str(database)),
        *("--isolation", isolation),
        *safety,
        "--disable-runtime-dependency-installation",
    ]


def node_command(
    link: str,
    *,
    port: int,
    config: Path,
    identity: Identity | None,
    isolation: Isolation = "subprocess",
) -> list[str]:
    """Start a site's SuperNode.

    Args:
        link: ``host:port`` of the SuperLink.
        port: where the node listens for its own processes, on the loopback address; one per node
            of a machine.
        config: what the node is told of itself, a TOML file.
        identity: None for a link that is ``--insecure``.
        isolation: whether it starts its apps itself, or leaves that to our executor.
    """
    safety = (
        ["--insecure"]
        if identity is None
        else [
            *("--root-certificates", str(identity.root)),
            *("--auth-supernode-private-key", str(identity.private_key)),
        ]
    )
    return [
        "flower-supernode",
        *("--superlink", link),
        *("--host", LOOPBACK),
        *("--port", str(port)),
        *("--node-config", str(config)),
        *("--isolation", isolation),
        *safety,
    ]


FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "PYTHONUNBUFFERED": "1",
}
"""No telemetry, no installations, and little waiting."""


def built_app(folder: Path) -> bytes:
    """The app of a folder as Flower hands it to nodes; the same files give the same bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower itself uses
        return bytes(build_fab_from_disk(folder))


def app_settings(folder: Path) -> dict[str, ConfigValue]:
    """The settings of a run of the app in a folder, as they stand there."""
    settings: dict[str, ConfigValue] = parse_toml(read_text(folder / "pyproject.toml"))["tool"][
        "flwr"
    ]["app"]["config"]
    return settings


def programs() -> Path:
    """Where the programs of this Python's environment are."""
    return Path(sys.executable).parent


def flower_environment(home: Path) -> dict[str, str]:
    """Our own environment with Flower's settings; its programs, found by bare name, come first."""
    path = os.pathsep.join(filter(None, [str(programs()), os.environ.get("PATH")]))
    return {
        **os.environ,
        **without_proxy(os.environ),
        **FLOWER_SETTINGS,
        "FLWR_HOME": str(home),
        "PATH": path,
    }


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings by which programs reach this machine itself without a proxy."""
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = ",".join(filter(None, [known, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


# Below what Linux and macOS hand out to outgoing connections, which could take one in between.
CANDIDATES = range(20_000, 32_000)


def free_ports() -> Iterator[int]:
    """Different free ports on the loopback address, in an order that differs each time."""
    shuffled = random.SystemRandom().sample(CANDIDATES, len(CANDIDATES))
    yield from (port for port in shuffled if is_free(port))
    raise FedbridgeError(
        f"Expected a free port on {LOOPBACK} between {CANDIDATES.start} and {CANDIDATES.stop - 1}, "
        "but all are taken: stop some of the programs that listen there."
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


TERMINATIONS = [one for one in signal.Signals if one.name in ("SIGTERM", "SIGHUP")]


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, which would end Python on the spot, end the block as an exception.

    A handler that somebody else has set is left alone, as are signals that are ignored. Only the
    main thread can do this; elsewhere nothing changes.
    """
    taken = [one for one in TERMINATIONS if signal.getsignal(one) is signal.SIG_DFL]
    with _handlers(dict.fromkeys(taken, _leave)):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nobody who presses Ctrl-C again keep a few seconds of cleaning up from their end."""
    with _handlers(dict.fromkeys((signal.SIGINT, *TERMINATIONS), signal.SIG_IGN)):
        yield


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


@contextmanager
def _handlers(wanted: dict[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum, handler in wanted.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


LAST_LINES = 12
LONGEST_TAIL = 16_384


class OperationError(FedbridgeError):
    """A Flower process that did not start, went away, or was refused; with its last words."""


class SupervisedProcesses:
    """Processes with names, each with a log file, under one supervisor.

    Args:
        gently: they have some seconds to take leave when they are ended, as a node of its link.
    """

    def __init__(self, *, gently: bool = False) -> None:
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__, *([supervisor.GENTLY] if gently else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._requests = 0

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> int:
        """Start a process under this name, the log added to what the file holds; its number."""
        log.parent.mkdir(parents=True, exist_ok=True)
        reply = self._ask(
            do="start",
            name=name,
            command=list(command),
            log=str(log),
            environment=dict(environment),
        )
        return int(reply["pid"])

    def exit_codes(self) -> dict[str, int | None]:
        """How each process ended, or None while it runs."""
        codes: dict[str, int | None] = self._ask(do="codes")["codes"]
        return codes

    def exit_code(self, name: str) -> int | None:
        """How one process ended, or None while it runs."""
        return self.exit_codes()[name]

    def end(self, *names: str, patience: float | None = None) -> None:
        """End processes and all that came of them: asked first, killed when patience is over."""
        _check_gone(self._ask(do="end", names=names, patience=patience)["left"])

    def close(self, patience: float | None = None) -> None:
        """End everything, the supervisor last."""
        left: Iterable[int] = ()
        try:
            with suppress(OperationError):  # with the supervisor all it started is gone
                left = self._ask(do="end", names=None, patience=patience)["left"]
        finally:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            with suppress(BrokenPipeError):
                self._supervisor.stdin.close()
            self._supervisor.wait()
            self._supervisor.stdout.close()
        _check_gone(left)

    def _ask(self, **request: object) -> dict[str, Any]:
        """Send a request and read its reply; one left over from an interrupted call is skipped."""
        self._requests += 1
        line = json.dumps({"id": self._requests, **request}).encode() + b"\n"
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        try:
            self._supervisor.stdin.write(line)
            self._supervisor.stdin.flush()
            reply: dict[str, Any] = {"id": 0}
            while reply["id"] != self._requests:
                reply = json.loads(self._supervisor.stdout.readline())
        except (OSError, ValueError) as error:
            raise OperationError(
                "Expected the supervisor of the Flower processes to be there, but it has ended, "
                "and they with it: start the cluster again."
            ) from error
        if "error" in reply:
            raise OperationError(
                f"Expected to {request['do']} {request.get('name', 'a process')}, "
                f"but got an error: {reply['error']}; is the flower extra installed?"
            )
        return reply


def tail(log: Path, lines: int = LAST_LINES) -> str:
    """The last lines of a file, however long it is; nothing if there is none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_TAIL))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def _check_gone(left: Iterable[int]) -> None:
    if numbers := ", ".join(str(pid) for pid in left):
        raise OperationError(
            f"Expected all Flower processes to end, but these live on: {numbers}; "
            "end them with kill -9."
        )


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


T = TypeVar("T")


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
        """All nodes that the link knows, online or not; it also lists those that it let go."""
        listed = self._told(lambda: self._client.ListNodes(ListNodesRequest())).nodes_info
        return [
            Node(
                node_id=node.node_id,
                name=node.name,
                public_key=node.public_key,
                online=node.status == "online",
                activated=node.last_activated_at,
            )
            for node in listed
            if node.status != "unregistered"
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
        content = built_app(app)
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
        request = ListRunsRequest(run_id=run_id)
        runs = self._told(lambda: self._client.ListRuns(request)).run_dict
        if run_id not in runs:
            raise LinkRefusedError(
                f"Expected the link to know run {run_id}, but it does not: "
                "was it started on another link?"
            )
        run = runs[run_id]
        return RunState(
            run_id=run.run_id,
            status=cast("Status", run.status.sub_status or run.status.status),
            details=run.status.details,
            bytes_to_nodes=run.bytes_sent,
            bytes_from_nodes=run.bytes_recv,
        )

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

    def _told(self, ask: Callable[[], T]) -> T:
        """What the link says, asked once more if a proxy has cut the connection meanwhile."""
        with self._spoken_to():
            try:
                return ask()
            except (httpx.RemoteProtocolError, httpx.ReadError):
                return ask()

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
