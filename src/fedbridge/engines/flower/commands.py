"""The commands that start Flower's programs, the same on one machine as between hospitals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.engines.flower.certificates import Certificates


Isolation = Literal["subprocess", "process"]


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
    host: str = "127.0.0.1",
    isolation: Isolation = "subprocess",
) -> list[str]:
    """Start a site's SuperNode.

    Args:
        link: ``host:port`` of the SuperLink.
        port: where the node listens for its own processes, on ``host``; one per node of a machine.
        config: what the node is told of itself, a TOML file.
        identity: None for a link that is ``--insecure``.
        host: should stay an address of this machine only.
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
        *("--host", host),
        *("--port", str(port)),
        *("--node-config", str(config)),
        *("--isolation", isolation),
        *safety,
    ]
