"""Which runs a site takes part in: those whose app and settings it has approved, by their hash."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import to_json
from fedbridge.flower.programs import app_settings, built_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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


def hash_of_app(folder: Path, told: Mapping[str, Any] | None = None) -> str:
    """The hash of a run of the app in a folder, as its settings stand there.

    ``told`` is what the run is told otherwise, as advice is.
    """
    return run_hash(built_app(folder), {**app_settings(folder), **(told or {})})


def approving(hashes: Iterable[str]) -> str:
    """The line of a site's ``site.toml`` that lets these runs take place."""
    return f"approve = {to_json(list(dict.fromkeys(hashes)))}"


def check_approved(found: str, approved: Sequence[str] | None) -> None:
    """Refuse a run that is not on a site's list; without a list all are welcome."""
    if approved is not None and found not in approved:
        raise NotApprovedError(
            f"Expected a run that this site has approved, but its app and settings have the hash "
            f"{found}: once somebody there has looked at them, the site writes it into `approve` "
            f"of its site.toml."
        )
