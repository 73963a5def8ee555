"""Key pairs by which the coordinator knows its sites, in the formats that Flower reads.

A site proves who it is with an ECDSA key on the curve P-384. The private key stays at the site, in
OpenSSH format (``flower-supernode --auth-supernode-private-key``); the public one goes to the
coordinator (``flwr supernode register``). Both are what ``ssh-keygen -t ecdsa -b 384`` would make.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedbridge.errors import FedbridgeError
from fedbridge.files import PRIVATE, file_name, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

CURVE = ec.SECP384R1()


class KeyFileError(FedbridgeError):
    """A key that is missing, unreadable, of another kind, or open to others."""


@dataclass(frozen=True)
class NodeKey:
    """Where the two halves of a site's key are."""

    private: Path
    public: Path


def make_node_key(folder: Path, site: str) -> NodeKey:
    """Make the key pair of a site: ``folder/<site>`` (private) and ``folder/<site>.pub``."""
    key = node_key(folder, site)
    if key.private.exists():
        raise KeyFileError(
            f"Expected no private key in {key.private} yet, but there is one: "
            "keep it, or move it away first."
        )
    secret = ec.generate_private_key(CURVE)
    write_atomically(
        key.private,
        secret.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        mode=PRIVATE,
    )
    public = secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(key.public, public + f" {key.private.name}\n".encode())
    return key


def node_key(folder: Path, site: str) -> NodeKey:
    """Where the keys of a site are, made or not."""
    name = file_name(site)
    return NodeKey(private=folder / name, public=folder / f"{name}.pub")


def read_public_key(path: Path) -> bytes:
    """A site's public key as Flower stores it, to compare with ``grid.get_nodes()``."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unreadable(path, "it is not a public key in OpenSSH format") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _another_kind(path)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_private_key(path: Path) -> bytes:
    """Raise if a node could not use this private key; the public key that belongs to it.

    Raises:
        KeyFileError: missing, unreadable, not an ECDSA key, or readable to others.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unreadable(path, "it is not a private key in OpenSSH format") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _another_kind(path)
    check_only_owner_reads(path)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_only_owner_reads(path: Path) -> None:
    """Raise if others on this machine could read a private key."""
    mode = path.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(
            f"Expected a private key that only its owner can read, but {path} has mode "
            f"{stat.S_IMODE(mode):o}: run chmod 600 on it."
        )


def check_node_key(key: NodeKey) -> None:
    """Raise if the private key cannot be used or the public one belongs to another."""
    if check_private_key(key.private) != read_public_key(key.public):
        raise KeyFileError(
            f"Expected {key.public} to belong to {key.private}, but it is another key: "
            "make the pair anew and register it again."
        )


def _unreadable(path: Path, why: str) -> KeyFileError:
    return KeyFileError(
        f"Expected a site's key in {path}, but could not read it: {why}; "
        "check the file, or make a new key."
    )


def _another_kind(path: Path) -> KeyFileError:
    return KeyFileError(
        f"Expected an ECDSA key in {path}, but got one of another kind: "
        "make a new one, since Flower accepts only ECDSA keys."
    )
