"""Writes a deployment's folder: whole or not at all, never over another.

In it are the Flower app and the runbook: every command of a deployment, in the order in which
people need them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge._version import __version__
from fedbridge.base.files import packaged_text, storage_error, write_atomically
from fedbridge.deploy.folders import (
    LINK_NAME,
    NODE_PORT,
    Deployment,
    DeploymentError,
    DeploymentPlan,
    SiteFolder,
    SiteSettings,
    site_settings_text,
)
from fedbridge.deploy.running import (
    flower_config,
    register_command,
    run_command,
    settings_for,
    shown,
    start_link_command,
    start_node_command,
)
from fedbridge.flower import pki, server
from fedbridge.flower.options import ConfigValue, NetworkOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def app_files(plan: DeploymentPlan, keys: Path) -> dict[str, str]:
    """The files of the app by their paths."""
    readme = (
        f"# A federation for {plan.target}\n\nWritten by `fedbridge deploy init`. "
        f"What to do with it is in the RUNBOOK.md beside this folder.\n"
    )
    description = f"A federation of {len(plan.sources)} sources for {plan.target}"
    files = server.app_files(run_config(plan, keys), description=description, client=CLIENT_APP)
    return {**files, "README.md": readme}


def run_config(plan: DeploymentPlan, keys: Path) -> dict[str, ConfigValue]:
    """The settings of the run, as the app's modules read them; empty text says nothing.

    A run can set anew only what is here, so all that there is stands here. ``keys`` is where the
    sites' public keys are.
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
        "keys": str(keys),
        **NetworkOptions().config(),
        "norm-ratio": "",
    }


def link_hosts(plan: DeploymentPlan) -> Sequence[str]:
    """The names that the link's certificate is for; its own processes call it by the last ones."""
    return tuple(dict.fromkeys((plan.host, "localhost", "127.0.0.1")))


def write_deployment(plan: DeploymentPlan, folder: Path, days: float = pki.VALID_DAYS) -> bool:
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
    files = pki.make_certificates(here.coordinator, link_hosts(plan), days)
    write_atomically(here.flower_home / "config.toml", flower_config(final, plan))
    for number, name in enumerate(plan.sites):
        site = here.site(name)
        site.folder.mkdir(parents=True, mode=OWNER_ONLY)
        write_atomically(site.settings_file, site_settings_text(plan, name, NODE_PORT + number))
        write_atomically(site.ca, files.ca.read_bytes())
        pki.make_node_key(site.folder, pki.NODE)
    for path, content in app_files(plan, final.sites).items():
        write_atomically(here.app / path, content)
    write_atomically(here.folder / ".gitignore", KEPT_OUT_OF_GIT)
    write_atomically(here.runbook, runbook(final, plan))
    write_atomically(here.plan_file, plan.to_json())


def renew(deployment: Deployment, days: float, *, authority: bool) -> bool:
    """Renew the link's certificate; whether there is a new authority too, asked for or due.

    What sites need of it lies in their folders then, to be handed out again.
    """
    folder, hosts = deployment.coordinator, link_hosts(deployment.plan())
    authority = authority or pki.ends_soon(pki.read_authorities(deployment.certificates.ca)[0])
    if not authority:
        pki.renew_server_certificate(folder, hosts, days)
        return False
    files = pki.renew_authority(folder, hosts, days)
    for name in deployment.plan().sites:
        write_atomically(deployment.site(name).ca, files.ca.read_bytes())
    return True


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


def runbook(deployment: Deployment, plan: DeploymentPlan) -> str:
    """The text of ``RUNBOOK.md``, from the file of that name beside this one."""

    def quoted(path: Path) -> str:
        return shlex.quote(str(path))

    registered = "\n".join(shlex.join(register_command(deployment, site)) for site in plan.sites)
    start_link = shown([start_link_command(deployment, plan)], deployment.flower_home)
    return packaged_text("fedbridge.deploy", "RUNBOOK.md").format(
        version=__version__,
        sources=", ".join(plan.sources),
        target=plan.target,
        host=plan.host,
        address=plan.address,
        folder=quoted(deployment.folder),
        home=quoted(deployment.flower_home),
        run=quoted(deployment.run),
        history=quoted(deployment.run / "history.jsonl"),
        link=LINK_NAME,
        start_link=_indented(start_link),
        register=_indented(registered),
        start_run=_indented(shlex.join(run_command(deployment))),
        sites="\n".join(
            _site_steps(plan, name, NODE_PORT + number) for number, name in enumerate(plan.sites)
        ),
    )


def _site_steps(plan: DeploymentPlan, name: str, port: int) -> str:
    settings = SiteSettings(name, plan.role(name), "", plan.address, port, plan.reading)
    environment = "\n".join(
        f"export {variable}={value}"
        for variable, value in settings_for(Path("$PWD/flower")).items()
    )
    command = f"{environment}\n{shlex.join(start_node_command(SiteFolder(Path()), settings))}"
    return packaged_text("fedbridge.deploy", "RUNBOOK-site.md").format(
        name=name,
        role=plan.role(name),
        label=plan.reading.label_column,
        start_node=_indented(command),
    )


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
