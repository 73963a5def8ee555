"""Writes a deployment's folder with its Flower app: whole or not at all, never over another."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

from fedbridge.base.files import storage_error, write_atomically
from fedbridge.deploy.folders import NODE_PORT, Deployment, DeploymentError, site_settings_text
from fedbridge.deploy.runbook import runbook
from fedbridge.deploy.running import flower_config
from fedbridge.flower import server
from fedbridge.flower.options import NetworkOptions
from fedbridge.flower.pki import VALID_DAYS, make_certificates, make_node_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.deploy.folders import DeploymentPlan
    from fedbridge.flower.options import ConfigValue

OWNER_ONLY = 0o700
KEPT_OUT_OF_GIT = (
    "# Keys, certificates and data have no place in a repository.\n/coordinator/\n/sites/\n"
)
CLIENT_APP = '''\
"""What runs at every site: it reads the site's own CSV by the schema that the sites agreed on."""

from pathlib import Path

from fedbridge.deploy.loading import csv_sites
from fedbridge.engines.flower import client_app

app = client_app(load=csv_sites(Path(__file__).with_name("schema.json")))
'''


def app_files(plan: DeploymentPlan) -> dict[str, str]:
    """The files of the app by their paths."""
    readme = (
        f"# A federation for {plan.target}\n\nWritten by `fedbridge deploy init`. "
        f"What to do with it is in the RUNBOOK.md beside this folder.\n"
    )
    description = f"A federation of {len(plan.sources)} sources for {plan.target}"
    files = server.app_files(run_config(plan), description=description, client=CLIENT_APP)
    return {**files, "README.md": readme}


def run_config(plan: DeploymentPlan) -> dict[str, ConfigValue]:
    """The settings of the run, as the app's modules read them; empty text says nothing.

    A run can set anew only what is here, so all that there is stands here.
    """
    return {
        "method": plan.method,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "target": plan.target,
        "sites": ",".join(plan.sources),
        "model": plan.model,
        "n-target": plan.n_target or 0,
        "test-fraction": plan.test_fraction,
        "options": json.dumps(dict(plan.options)),
        "out": "",
        "secure": True,
        **NetworkOptions().config(),
    }


def link_hosts(plan: DeploymentPlan) -> Sequence[str]:
    """The names that the link's certificate is for; its own processes call it by the last ones."""
    return tuple(dict.fromkeys((plan.host, "localhost", "127.0.0.1")))


def write_deployment(plan: DeploymentPlan, folder: Path, days: float = VALID_DAYS) -> bool:
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


def _write(plan: DeploymentPlan, here: Deployment, final: Deployment, days: float) -> None:
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


def _check_same(there: Deployment, plan: DeploymentPlan) -> None:
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
