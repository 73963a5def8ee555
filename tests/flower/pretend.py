"""A Flower grid in one process: messages go straight to ``ClientApp`` objects, and are kept."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from fedbridge.data.site_package import LocalSite, sites_of
from fedbridge.flower import FedBridgeStrategy, client_app
from fedbridge.flower.pki import NODE, make_node_key, read_public_key, site_key
from fedbridge.flower.site import MODEL
from fedbridge.methods import class_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from flwr.clientapp import ClientApp
    from torch import nn


def identify() -> None:
    """Say who this process is, as Flower does before it runs an app."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@dataclass
class Node:
    """A node with its app, its key, and when it was started.

    ``spoil`` may change an answer, or keep it.
    """

    name: str
    app: ClientApp
    config: dict[str, Any] = field(default_factory=dict)
    spoil: Callable[[Message, Message], Message | None] = lambda question, answer: answer
    activated: str = ""
    key: bytes = b""


class PretendGrid(Grid):
    """Nodes that answer at once.

    Attributes:
        sent: every answer's content, as it left a node: (node, kind of message, content).
        asked: (node, kind) of every message.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        identify()
        self.nodes: dict[int, Node] = {}
        self.sent: list[tuple[str, str, RecordDict]] = []
        self.asked: list[tuple[str, str]] = []
        self._ids = itertools.count(10)
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}
        for node in nodes:
            self.join(node)

    def join(self, node: Node) -> int:
        number = next(self._ids)
        self.nodes[number] = node
        return number

    def leave(self, name: str) -> None:
        self.nodes = {number: node for number, node in self.nodes.items() if node.name != name}

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(
                node_id=number,
                name=node.name,
                last_activated_at=node.activated,
                public_key=node.key,
            )
            for number, node in self.nodes.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            number = f"m{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            sent.append(number)
            node = self.nodes[message.metadata.dst_node_id]
            self.asked.append((node.name, message.metadata.message_type))
            answer = node.spoil(message, self._answer(node, message))
            if answer is not None:
                if answer.has_content():
                    self.sent.append((node.name, message.metadata.message_type, answer.content))
                self._replies[number] = answer
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in [*message_ids] if number in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: Any = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, node: Node, message: Message) -> Message:
        context = Context(1, message.metadata.dst_node_id, node.config, RecordDict(), {})
        try:
            return node.app(message, context)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=2, reason=reason), reply_to=message)


def nodes_of(task: Any, folder: Path, model: Any = None, **config: Any) -> list[Node]:
    """A node for every site of a task, each holding its own rows."""

    def node(site: LocalSite) -> Node:
        memory = {"memory": str(folder / site.name), "most-statistics": 99, **config}
        return Node(site.name, client_app(load=lambda context: site, model=model), memory)

    return [node(site) for site in sites_of(task)]


def keyed(task: Any, folder: Path) -> tuple[list[Node], Path]:
    """Nodes that have the keys of their sites, and the folder in which the public ones are."""
    nodes, keys = nodes_of(task, folder), folder / "sites"
    for node in nodes:
        key = site_key(keys, node.name)
        node.key = read_public_key(make_node_key(key.private.parent, NODE).public)
    return nodes, keys


def run_over_pretended_flower(
    task: Any,
    method: str,
    rounds: int,
    folder: Path,
    grid: PretendGrid | None = None,
    **options: Any,
) -> tuple[FedBridgeStrategy, PretendGrid]:
    """The run that ``fedbridge.run`` would do locally."""
    found = PretendGrid(nodes_of(task, folder)) if grid is None else grid
    strategy = FedBridgeStrategy(
        method,
        target=task.target.name,
        sites=task.source_names,
        **{"name": task.name, "model": task.model, "wait": 0.2, **task.defaults, **options},
    )
    strategy.start(found, num_rounds=rounds)
    return strategy, found


def model_at_target(strategy: FedBridgeStrategy, folder: Path, plain: nn.Module) -> nn.Module:
    """The model that the target has kept; ``plain`` is one as the run names it."""
    (file,) = (folder / strategy.target / MODEL).rglob("model.safetensors")
    found = load_file(file)
    model = class_of(strategy.rule).restore(deepcopy(plain), found)
    model.load_state_dict(found)
    return model
