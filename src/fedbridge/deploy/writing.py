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
from fedbridge.base.files import storage_error, write_atomically
from fedbridge.deploy.folders import (
    LINK_NAME,
    NODE_PORT,
    Deployment,
    DeploymentError,
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
from fedbridge.flower import server
from fedbridge.flower.options import NetworkOptions
from fedbridge.flower.pki import (
    NODE,
    VALID_DAYS,
    ends_soon,
    make_certificates,
    make_node_key,
    read_authorities,
    renew_authority,
    renew_server_certificate,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        make_node_key(site.folder, NODE)
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
    authority = authority or ends_soon(read_authorities(deployment.certificates.ca)[0])
    if not authority:
        renew_server_certificate(folder, hosts, days)
        return False
    files = renew_authority(folder, hosts, days)
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
    """The text of ``RUNBOOK.md``."""
    parts = [_head(plan), _coordinator(deployment, plan)]
    parts += [_site(plan, name, NODE_PORT + k) for k, name in enumerate(plan.sites)]
    return "\n".join([*parts, _later(deployment, plan)])


def _head(plan: DeploymentPlan) -> str:
    sources = ", ".join(plan.sources)
    return f"""\
# Runbook: {sources} help {plan.target}

| who | has | does |
|---|---|---|
| coordinator, at `{plan.host}` | this folder | runs the link and the rounds, keeps the model |
| sources: {sources} | their folder under `sites/` | train on their own rows |
| target: {plan.target} | its folder under `sites/` | trains, weighs the help, tests |

Everybody needs the same version: `pip install "fedbridge[flower]=={__version__}"`. Every command
below is a short form; `--print` shows the Flower command behind it, which is also written out here.

**The network.** Sites call the coordinator at `{plan.address}`; nothing calls a site. Let nobody
but the sites reach that port (a firewall, a VPN): whoever can reach it can also ask Flower's link
to start a run, which is a program that runs at the coordinator and at every site.
"""


def _coordinator(deployment: Deployment, plan: DeploymentPlan) -> str:
    folder = shlex.quote(str(deployment.folder))
    registered = "\n".join(shlex.join(register_command(deployment, site)) for site in plan.sites)
    return f"""\
## The coordinator

1. **Hand out.** Give each site its folder `sites/NAME`, by a way that only this site can read: it
   holds the site's private key `node`. Then delete `sites/NAME/node` here. (A site that lets
   nobody else ever see its key makes its own: see its steps.)

2. **Start the link**, and leave it running:

   ```sh
   fedbridge deploy link {folder}
   ```

   which is

   ```sh
{_indented(shown([start_link_command(deployment, plan)], deployment.flower_home))}
   ```

3. **Register the sites' keys**, once, while the link runs:

   ```sh
   fedbridge deploy register {folder}
   ```

   which is, in the same environment,

   ```sh
{_indented(registered)}
   ```

4. **Collect the descriptions.** Each site sends its `description.json`, which holds names of
   columns, categories and labels but no row. Put it in `sites/NAME/`.

5. **Check.** Says what is missing, whether all sites mean the same by their columns, and then
   writes the agreed schema into the app:

   ```sh
   fedbridge deploy check {folder}
   ```

6. **Run**, when all nodes are online:

   ```sh
   fedbridge deploy run {folder}
   ```

   which is, in the same environment,

   ```sh
{_indented(shlex.join(run_command(deployment)))}
   ```

   The result is in `coordinator/run`: `history.jsonl`, `summary.json`, the model, the checkpoint.
   Settings of the run are in `app/pyproject.toml`.
"""


def _site(plan: DeploymentPlan, name: str, port: int) -> str:
    here = SiteFolder(Path())
    settings = SiteSettings(name, plan.role(name), "", plan.address, port, plan.reading)
    environment = "\n".join(
        f"export {variable}={value}"
        for variable, value in settings_for(Path("$PWD/flower")).items()
    )
    command = f"{environment}\n{shlex.join(start_node_command(here, settings))}"
    return f"""\
## Site {name} ({plan.role(name)})

In the folder that the coordinator handed out:

1. **Fill in** `data` in `site.toml`: the whole path of {name}'s CSV. The column to predict is
   `{plan.reading.label_column}`.

   What this site allows itself to be asked is at the end of that file: floors that no run can
   lower, and differential privacy, which is off unless you turn it on. Without it, updates can
   tell of single rows.

2. **Check**, and describe the data:

   ```sh
   fedbridge deploy check .
   ```

   It also warns where this site is less protected than it could be, and where others on this
   machine could write to its files. Read `description.json` before you send it to the
   coordinator: rare categories can point to a person. `--no-counts` leaves out how many rows
   there are.

3. **Start the node**, and leave it running:

   ```sh
   fedbridge deploy node .
   ```

   which is

   ```sh
{_indented(command)}
   ```

*A key of your own.* Delete `node` and `node.pub`, run `fedbridge deploy key .`, and send the new
`node.pub` to the coordinator before it registers the sites.
"""


def _later(deployment: Deployment, plan: DeploymentPlan) -> str:
    folder = shlex.quote(str(deployment.folder))
    home = shlex.quote(str(deployment.flower_home))
    return f"""\
## Watching, stopping, going on

At the coordinator, after `export FLWR_HOME={home}`:

| what | command |
|---|---|
| which sites are online | `flwr supernode list {LINK_NAME}` |
| which runs there are | `flwr list {LINK_NAME}` |
| what a run says | `flwr log RUN_ID {LINK_NAME} --stream` |
| accuracy so far | `tail -n 1 {shlex.quote(str(deployment.run / "history.jsonl"))}` |
| stop a run | `flwr stop RUN_ID {LINK_NAME}` |
| a page about the run | `fedbridge report {shlex.quote(str(deployment.run))}` |

Link and nodes stop with Ctrl-C; none of their processes is left.

**After a crash.** A source that is gone is left out of the round and named in the history; start
its node again and it takes part again. Without its target a run waits for a while. If the link or
the run is gone, start the link again (it remembers the registered keys in `coordinator/link.db`;
nodes find it by themselves), then run again: it goes on after the last finished round, from the
checkpoint in `coordinator/run`. To begin anew instead, move `coordinator/run` away.

## New certificates

`fedbridge deploy check` warns 30 days before one ends, at the coordinator and at every site. The
link's is replaced by

```sh
fedbridge deploy renew {folder}
```

and a restart of the link; the sites need nothing new as long as the authority in their `ca.crt` is
valid. When the authority itself comes to its end, the same command makes a new one beside it
(`--authority` does so at any time). Then, in this order:

1. *Coordinator*: restart the link. It still has a certificate of the old authority, so that no site
   is locked out. Send `sites/NAME/ca.crt`, in which both authorities are, to each site. It is no
   secret, but the site must be sure that it comes from you.
2. *Each site*, before the old authority ends: put it in the place of its `ca.crt`, stop the node
   with Ctrl-C, start it again, and run `fedbridge deploy check .`
3. *Coordinator*, when all sites have done so: `fedbridge deploy renew` once more, and restart the
   link. Now its certificate is of the new authority. Until then `fedbridge deploy check` reminds
   you.

When `coordinator/ca.key` got into wrong hands, make a new deployment and hand out its folders: the
old authority would be trusted to its end.

## New keys

A run believes a site by the public key `sites/NAME/node.pub` in this folder, whatever name a key
has at the link. A site that makes a new key (`fedbridge deploy key .`, because the old one is lost
or got into wrong hands) sends its `node.pub`: put it in `sites/NAME/`, remove the old key with
`flwr supernode unregister NODE_ID {LINK_NAME}` (`fedbridge deploy check` says its number), and run
`fedbridge deploy register {folder}`.
"""


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
