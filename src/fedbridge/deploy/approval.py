"""Which runs a site takes part in: those whose app and settings it has approved, by their hash."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import parse_toml, read_text, to_json
from fedbridge.flower.programs import built_app

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

COORDINATORS = ("out", "keys", "members")
"""Settings that only say where files lie at the coordinator."""


class NotApprovedError(FedbridgeError):
    """A run whose app or settings are not among those that a site has approved."""


def run_hash(app: bytes, config: Mapping[str, Any]) -> str:
    """The hash of a built app and of the settings that it runs with."""
    settings = {name: config[name] for name in sorted(config) if name not in COORDINATORS}
    told = {"app": hashlib.sha256(app).hexdigest(), "settings": settings}
    return hashlib.sha256(to_json(told).encode()).hexdigest()


def hash_of_app(folder: Path) -> str:
    """The hash of a run of the app in a folder, as its settings stand there."""
    settings = parse_toml(read_text(folder / "pyproject.toml"))
    return run_hash(built_app(folder), settings["tool"]["flwr"]["app"]["config"])


def check_approved(found: str, approved: Sequence[str] | None) -> None:
    """Refuse a run that is not on a site's list; without a list all are welcome."""
    if approved is not None and found not in approved:
        raise NotApprovedError(
            f"Expected a run that this site has approved, but its app and settings have the hash "
            f"{found}: once somebody there has looked at them, the site writes it into `approve` "
            f"of its site.toml."
        )
