"""Writes a deployment's folder: whole or not at all, never over another.

In it are the Flower app and the runbook: every command of a deployment, in the order in which
people need them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import fields
from typing import TYPE_CHECKING

from fedbridge import methods
from fedbridge._version import __version__
from fedbridge.base.files import packaged_text, storage_error, write_atomically
from fedbridge.deploy.description import own_versions
from fedbridge.deploy.folders import (
    LINK_NAME,
    NODE_PORT,
    Deployment,
    DeploymentError,
    DeploymentPlan,
    site_settings_text,
    what_it_is,
)
from fedbridge.deploy.installing import how_to_install, own_wheel, write_installation
from fedbridge.deploy.running import (
    flower_config,
    register_command,
    run_command,
    shown,
    start_link_command,
)
from fedbridge.flower import pki, server
from fedbridge.flower.options import ConfigValue, NetworkOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OWNER_ONLY = 0o700
KEPT_OUT_OF_GIT = (
    "# Keys, certificates and data have no place in a repository.\n/coordinator/\n/sites/\n"
)
CLIENT_APP = '''\
"""What runs at every site: it reads the site's own data by the schema that the sites agreed on."""

from pathlib import Path

from fedbridge.deploy.loading import own_rows
from fedbridge.engines.flower import client_app

app = client_app(load=own_rows(Path(__file__).with_name("schema.json")))
'''


SERVER_APP = '''\
"""What runs at the coordinator: the rounds, as the run configuration says."""

from pathlib import Path

from fedbridge.deploy.loading import as_agreed
from fedbridge.engines.flower import server_app

app = server_app(preprocessing=as_agreed(Path(__file__).with_name("schema.json")))
'''


def app_files(plan: DeploymentPlan, keys: Path) -> dict[str, str]:
    """The files of the app by their paths."""
    readme = (
        f"# A federation for {plan.target}\n\nWritten by `fedbridge deploy init`. "
        f"What to do with it is in the RUNBOOK.md beside this folder.\n"
    )
    description = f"A federation of {len(plan.sources)} sources for {plan.target}"
    files = server.app_files(
        run_config(plan, keys), description=description, client=CLIENT_APP, server=SERVER_APP
    )
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
        "positive": plan.positive or "",
        "options": json.dumps(dict(plan.options)),
        "out": "",
        "secure": True,
        "keys": str(keys),
        "members": "",
        **NetworkOptions(**plan.network).config(),
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
    pki.make_certificates(here.coordinator, link_hosts(plan), days)
    write_atomically(here.flower_home / "config.toml", flower_config(final, plan))
    for number, name in enumerate(plan.sites):
        write_site(plan, here, name, NODE_PORT + number)
    for path, content in app_files(plan, final.sites).items():
        write_atomically(here.app / path, content)
    write_atomically(here.folder / ".gitignore", KEPT_OUT_OF_GIT)
    write_atomically(here.runbook, runbook(final, plan))
    write_atomically(here.plan_file, plan.to_json())


def write_site(plan: DeploymentPlan, deployment: Deployment, name: str, port: int) -> None:
    """The folder of a new site: settings, what it installs, the authority, a pair of keys."""
    site = deployment.site(name)
    site.folder.mkdir(parents=True, mode=OWNER_ONLY)
    write_atomically(site.settings_file, site_settings_text(plan, name, port))
    write_atomically(site.start_here, start_here(plan, name))
    write_atomically(site.ca, deployment.certificates.ca.read_bytes())
    write_installation(site.folder)
    pki.make_node_key(site.folder, pki.NODE)


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
    before = there.plan()
    if before != plan:
        other = [f.name for f in fields(plan) if getattr(before, f.name) != getattr(plan, f.name)]
        raise DeploymentError(
            f"Expected {str(there.folder)!r} to be a new folder or the same deployment, but it "
            f"was made with other settings ({', '.join(other)}): change it with `fedbridge deploy "
            f"change {there.folder}`, which keeps certificates and keys, or choose another folder "
            f"with --out."
        )


def runbook(deployment: Deployment, plan: DeploymentPlan) -> str:
    """The text of ``RUNBOOK.md``, from the file of that name beside this one."""

    def quoted(path: Path) -> str:
        return shlex.quote(str(path))

    registered = "\n".join(shlex.join(register_command(deployment, site)) for site in plan.sites)
    start_link = shown([start_link_command(deployment, plan)], deployment)
    return packaged_text("fedbridge.deploy", "RUNBOOK.md").format(
        version=__version__,
        python=own_versions()["python"],
        wheel=own_wheel().name,
        sha256=own_wheel().sha256,
        first_site=quoted(deployment.site(plan.sites[0]).folder),
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
        starts=", ".join(f"`sites/{name}/START-HERE.md`" for name in plan.sites),
        target_run=quoted(deployment.site(plan.target).run),
        new=plan.new_data,
        coordinators=_coordinators_model(plan),
    )


def start_here(plan: DeploymentPlan, name: str) -> str:
    """The one page of a site, from the file ``START-HERE.md`` beside this one."""
    what = what_it_is(plan).replace("this site's", f"{name}'s")
    return packaged_text("fedbridge.deploy", "START-HERE.md").format(
        install=how_to_install(),
        name=name,
        role=plan.role(name),
        what=what,
        more=OF_TABLES.format(label=plan.reading.label_column) if plan.arrays is None else "",
        address=plan.address,
        use=USE_THE_MODEL.format(new=plan.new_data) if name == plan.target else "",
    )


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())


def _coordinators_model(plan: DeploymentPlan) -> str:
    """What the model at the coordinator is, and what it needs."""
    if methods.decides_at_target(plan.method):
        return NO_MODEL
    return THE_NETWORK if plan.arrays is None else "The same network is in `coordinator/run`."


OF_TABLES = """\
 The column to
   predict is `{label}`. Leave the file as it is: what it calls, codes, measures or spells otherwise
   than agreed, such as numbers like `1,5`, the same `site.toml` says, and shows how."""
USE_THE_MODEL = """\
5. **Use the model.** After the run, and after every round of it, it is in the folder `run` here,
   with a model card and a page (`run/report.html`):

   ```sh
   fedbridge predict run {new} --out predictions.csv
   ```
"""
NO_MODEL = (
    "The coordinator has no model to use: this method decides on it at the target, and what is in "
    "`coordinator/run` is only what the sources have in common."
)
THE_NETWORK = (
    "The same network is in `coordinator/run`. How the target's rows are prepared stays with the "
    "target, so there `fedbridge predict` standardises numbers by the rows it is given, as every "
    "site does: give it all rows of a site, not a few of them."
)
