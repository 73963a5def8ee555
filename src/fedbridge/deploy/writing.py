"""Writes a deployment's folder, whole or not at all, and never over another."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from fedbridge.deploy.app_files import app_files
from fedbridge.deploy.folders import Deployment, site_settings_text
from fedbridge.deploy.plan import NODE_PORT, DeploymentError
from fedbridge.deploy.runbook import runbook
from fedbridge.deploy.starting import flower_config
from fedbridge.engines.flower.pki import VALID_DAYS, make_certificates, make_node_key
from fedbridge.files import storage_error, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.deploy.plan import Plan

OWNER_ONLY = 0o700
KEPT_OUT_OF_GIT = (
    "# Keys, certificates and data have no place in a repository.\n/coordinator/\n/sites/\n"
)


def link_hosts(plan: Plan) -> Sequence[str]:
    """The names that the link's certificate is for; its own processes call it by the last ones."""
    return tuple(dict.fromkeys((plan.host, "localhost", "127.0.0.1")))


def write_deployment(plan: Plan, folder: Path, days: float = VALID_DAYS) -> bool:
    """Write everything; False when it is there already, for the same plan.

    Args:
        plan: What it is to be.
        folder: Where; it must not exist, or be empty.
        days: How long the certificates are valid.
    """
    final = Deployment(folder)
    if folder.exists() and any(folder.iterdir()):
        _check_same(final, plan)
        return False
    partial = Deployment(folder.with_name(f".{folder.name}.{os.getpid()}.partial"))
    try:
        _write(plan, partial, final, days)
        partial.folder.replace(folder)
    except OSError as error:
        raise storage_error(folder, error) from error
    finally:
        shutil.rmtree(partial.folder, ignore_errors=True)
    return True


def _write(plan: Plan, here: Deployment, final: Deployment, days: float) -> None:
    for folder in (here.folder, here.coordinator, here.flower_home):
        folder.mkdir(parents=True, mode=OWNER_ONLY)
    files = make_certificates(here.coordinator, link_hosts(plan), days)
    write_atomically(here.flower_home / "config.toml", flower_config(final, plan))
    for number, name in enumerate(plan.sites):
        site = here.site(name)
        site.folder.mkdir(parents=True, mode=OWNER_ONLY)
        write_atomically(site.settings_file, site_settings_text(plan, name, NODE_PORT + number))
        write_atomically(site.ca, files.ca.read_bytes())
        make_node_key(site.folder, "node")
    for path, content in app_files(plan).items():
        write_atomically(here.app / path, content)
    write_atomically(here.folder / ".gitignore", KEPT_OUT_OF_GIT)
    write_atomically(here.runbook, runbook(final, plan))
    write_atomically(here.plan_file, plan.to_json())


def _check_same(there: Deployment, plan: Plan) -> None:
    """Refuse to touch what is there, unless it is the same deployment."""
    if not there.plan_file.exists():
        raise DeploymentError(
            f"Expected a new or empty folder, but {str(there.folder)!r} holds other things: "
            f"choose another with --out."
        )
    if there.plan() != plan:
        raise DeploymentError(
            f"Expected {str(there.folder)!r} to be a new folder or the same deployment, but it "
            f"was made with other settings: choose another folder with --out, or edit "
            f"app/pyproject.toml and the site.toml files there; certificates and keys stay valid."
        )
