"""A whole Flower federation on this machine: a SuperLink and SuperNodes as real processes.

The same programs with the same options as between hospitals, on ports of their own of the loopback
address and with a Flower home of their own, so that neither another cluster nor the user's own
Flower is disturbed. When the context ends, however it ends, none of the processes is left.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, Self

import tomli_w

from fedbridge.base.errors import nearest
from fedbridge.base.files import file_name, write_atomically
from fedbridge.flower import executor
from fedbridge.flower.pki import NODE, Certificates, make_certificates, make_node_key, site_key
from fedbridge.flower.programs import (
    LOOPBACK,
    Control,
    Identity,
    Isolation,
    LinkUnreachableError,
    Node,
    OperationError,
    RunState,
    SupervisedProcesses,
    flower_environment,
    free_ports,
    link_command,
    node_command,
    programs,
    tail,
    termination_as_exit,
    uninterrupted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from fedbridge.flower.options import ConfigValue

LINK = "link"
EXECUTOR = "executor"
SERVER_APP = "server-app"
DATABASE = "link.db"
KEYS = "keys"
POLL_START = 0.1
POLL_RUN = 0.3
START_WITHIN = 120.0
"""Seconds that the link, or the nodes, may take to start."""

Apps = Literal["fork", "spawn"]
APPS: Apps = "fork" if sys.platform == "linux" else "spawn"


class Cluster:
    """A SuperLink, a SuperNode per site, and Flower runs on them.

    Args:
        folder: holds logs, keys, certificates, the link's state and Flower's home.
        sites: what each site's node is told (``--node-config``), by the name of the site.
        secure: TLS between link and nodes, and only nodes whose key was registered by name.
        apps: ``fork`` the apps from one warm process, or ``spawn`` a new Python for every message
            as Flower does by itself, which takes seconds each time.
    """

    def __init__(
        self,
        folder: Path,
        sites: Mapping[str, Mapping[str, ConfigValue]],
        *,
        secure: bool = False,
        apps: Apps = APPS,
    ) -> None:
        self.folder = folder.absolute()
        self.sites = {name: dict(config) for name, config in sites.items()}
        self.apps = apps
        self.simulated_nodes: int | None = None
        ports = free_ports()
        self.port = next(ports)
        self.address = f"{LOOPBACK}:{self.port}"
        self._node_ports = {name: next(ports) for name in self.sites}
        self._certificates = Certificates(self.folder / "certificates") if secure else None
        self.keys = self.folder / KEYS
        self._environment = flower_environment(self.folder / "flower-home")
        self._seen: set[tuple[int, str]] = set()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob(f"{DATABASE}*"):  # its nodes would be taken for ours
            old.unlink()
        self._make_secrets()
        with ExitStack() as undo:
            undo.enter_context(termination_as_exit())
            self.processes = SupervisedProcesses()
            undo.callback(self._close)
            if self.apps == "fork":
                self._launch_executor()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def _close(self) -> None:
        with uninterrupted():
            self.processes.close()

    def start(self) -> None:
        """Start link and nodes, as much as possible at the same time."""
        if self._certificates:  # a node whose key is not yet registered would be refused
            self.start_link()
            self.start_nodes()
        else:
            self._launch_link()
            for name in self.sites:
                self._launch_node(name)
            self._wait_for_link()
            self._wait_for_nodes(self.sites)

    def start_link(self) -> None:
        """Start the link, wait until it answers, and register the nodes' keys if they have any.

        One that was killed comes back at the same address and with the state it had.
        """
        self._launch_link()
        self._wait_for_link()
        if self._certificates:
            with self.control() as control:
                registered = {node.name for node in control.nodes()}
                for name in self.sites.keys() - registered:
                    control.register(site_key(self.keys, name).public, name)

    def start_nodes(self, *some: str) -> None:
        """Start nodes at once, all or some, and wait until the link knows them.

        With ``secure``, a node that was killed is let in again only when the link has given up the
        one before: up to a minute after its last sign of life, which is waited for here.
        """
        names = some or tuple(self.sites)
        with self.control() as control:
            for _ in self._waiting_for([LINK], "the link to give up the nodes that were killed"):
                nodes = control.nodes()
                if not any(node.online and node.name in names for node in nodes):
                    break
        self._seen |= {_activation(node) for node in nodes}
        for name in names:
            self._launch_node(name)
        self._wait_for_nodes(names)

    def run_app(
        self,
        app: Path,
        run_config: Mapping[str, ConfigValue] | None = None,
        on_tick: Callable[[RunState], object] | None = None,
    ) -> RunState:
        """Run a Flower app and wait until it has finished, telling ``on_tick`` how far it is.

        What the ServerApp prints is in ``log("server-app")``.
        """
        with self.control() as control:
            run_id = control.submit(app, run_config or {}, self.simulated_nodes)
            with control.output_to(self.log(SERVER_APP), run_id):
                while not (state := self._run_state(control, run_id)).finished:
                    self._check_executor()
                    if on_tick is not None:
                        on_tick(state)
                    time.sleep(POLL_RUN)
            return state

    def control(self) -> Control:
        """A connection to the link, to ask for more than the methods here do."""
        return Control(self.address, self._certificates.ca if self._certificates else None)

    def log(self, part: str = LINK) -> Path:
        """The log of the ``link``, of the ``server-app``, or of a site's node."""
        if part in (LINK, SERVER_APP):
            return self._log(part)
        if part in self.sites:
            return self._log(_node(part))
        raise OperationError(
            f"Expected one of the sites {', '.join(self.sites)}, but got {part!r}: "
            f"name a site of this cluster.{nearest(part, self.sites)}"
        )

    @property
    def _isolation(self) -> Isolation:
        return "process" if self.apps == "fork" else "subprocess"

    def _log(self, process: str) -> Path:
        return self.folder / "logs" / f"{process}.log"

    def _run_state(self, control: Control, run_id: int) -> RunState:
        """How far a run is; a link that lives may be busy, one that has ended has lost the run."""
        deadline = time.monotonic() + START_WITHIN
        while True:
            try:
                return control.run(run_id)
            except LinkUnreachableError:
                if self.processes.exit_code(LINK) is not None:
                    return RunState(run_id, "lost", details=tail(self._log(LINK)))
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_RUN)

    def _check_executor(self) -> None:
        if self.apps == "fork" and (code := self.processes.exit_code(EXECUTOR)) is not None:
            but = f"it ended with exit code {code}"
            raise self._not_there(EXECUTOR, "the process that runs the apps to be there", but)

    def _launch_executor(self) -> None:
        """Start it first: what it imports takes longest."""
        scheme = "https" if self._certificates else "http"
        served = [(f"{scheme}://{self.address}", self._log(EXECUTOR))]
        for name, port in self._node_ports.items():
            served.append((f"http://{LOOPBACK}:{port}", self._log(_node(name))))
        command = [sys.executable, "-m", executor.__name__]
        for url, log in served:
            command += ["--serve", url, str(log)]
        if self._certificates:
            command += ["--root-certificates", str(self._certificates.ca)]
        self._launch(EXECUTOR, command)

    def _launch_link(self) -> None:
        command = link_command(
            LOOPBACK,
            self.port,
            database=self.folder / DATABASE,
            certificates=self._certificates,
            isolation=self._isolation,
        )
        self._launch(LINK, command if self.simulated_nodes is None else [*command, "--simulation"])

    def _launch_node(self, name: str) -> None:
        config = self.folder / "nodes" / f"{file_name(name)}.toml"
        write_atomically(config, tomli_w.dumps(self.sites[name]))
        identity = None
        if self._certificates:
            key = site_key(self.keys, name)
            identity = Identity(root=self._certificates.ca, private_key=key.private)
        command = node_command(
            self.address,
            port=self._node_ports[name],
            config=config,
            identity=identity,
            isolation=self._isolation,
        )
        self._launch(_node(name), command)

    def _launch(self, process: str, command: list[str]) -> None:
        program = str(programs() / command[0])
        self.processes.start(
            process, [program, *command[1:]], self._log(process), self._environment
        )

    def _wait_for_link(self) -> None:
        with self.control() as control:
            for _ in self._waiting_for([LINK], "the SuperLink to answer"):
                try:
                    control.nodes()
                except LinkUnreachableError:
                    continue
                return

    def _wait_for_nodes(self, names: Iterable[str]) -> None:
        """Wait until the link has seen as many nodes come online as were started."""
        processes = [_node(name) for name in names]
        with self.control() as control:
            for _ in self._waiting_for(processes, f"{len(processes)} SuperNodes to come online"):
                activated = {_activation(node) for node in control.nodes() if node.online}
                if len(activated - self._seen) >= len(processes):
                    self._seen |= activated
                    return

    def _waiting_for(self, processes: list[str], what: str) -> Iterator[None]:
        """Short waits, until a process has ended or time is over, which are errors."""
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline:
            yield
            codes = self.processes.exit_codes()
            for process in processes:
                if (code := codes[process]) is not None:
                    raise self._not_there(process, what, f"it ended with exit code {code}")
            self._check_executor()
            time.sleep(POLL_START)
        raise self._not_there(processes[0], what, f"got none in {START_WITHIN:g} s")

    def _not_there(self, process: str, what: str, but: str) -> OperationError:
        return OperationError(
            f"Expected {what}, but {but}: see {self._log(process)}, which ends with\n"
            f"{tail(self._log(process))}"
        )

    def _make_secrets(self) -> None:
        if self._certificates is None:
            return
        if not self._certificates.ca.exists():
            make_certificates(self._certificates.folder, [LOOPBACK, "localhost"])
        for name in self.sites:
            key = site_key(self.keys, name)
            if not key.private.exists():
                make_node_key(key.private.parent, NODE)


def _node(name: str) -> str:
    return f"node-{file_name(name)}"


def _activation(node: Node) -> tuple[int, str]:
    return node.node_id, node.activated


class Simulation(Cluster):
    """A link that runs an app with simulated nodes, in processes of Ray.

    ``flwr run APP local`` leaves a link running in the background, on a port that is always the
    same. Here it has a port and a home of its own, and ends with the context. Nodes are told
    nothing but ``partition-id`` and ``num-partitions``, from 0 on.

    Args:
        folder: holds logs, the link's state and Flower's home.
        nodes: how many are simulated.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, {}, apps="spawn")
        self.simulated_nodes = nodes
