"""The commands of ``fedbridge deploy`` that start Flower's programs, or show how to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fedbridge.commands.deploy_parts import add_folder, need_flower, say
from fedbridge.commands.parts import FAILED, add_command, complain, write_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.commands.parts import Commands

LINK_HELP = """\
Start Flower's link at the coordinator, until Ctrl-C; none of its processes is left.

examples:
  fedbridge deploy link deployment
  fedbridge deploy link deployment --print
"""
REGISTER_HELP = """\
Register the keys of all sites with the running link, once; those that it knows are left alone.

examples:
  fedbridge deploy register deployment
  fedbridge deploy register deployment --print
"""
NODE_HELP = """\
Start a site's node, until Ctrl-C; none of its processes is left.

examples:
  fedbridge deploy node sites/north
  fedbridge deploy node . --print
"""
RUN_HELP = """\
Run the deployment's app and show what it says, until it ends; a stopped run goes on where it was.

Ctrl-C stops showing, not the run: the runbook says how to stop it.

examples:
  fedbridge deploy run deployment
  fedbridge deploy run deployment --print
"""


def add(own: Commands) -> None:
    """The commands and their arguments."""
    for name, command, short, text in (
        ("link", link_command, "start the link", LINK_HELP),
        ("register", register_command, "register the sites' keys", REGISTER_HELP),
        ("run", run_command, "run the app", RUN_HELP),
        ("node", node_command, "start a site's node", NODE_HELP),
    ):
        parser = add_command(own, name, command, short, text)
        add_folder(parser, "a site's folder" if name == "node" else "a deployment's folder")
        parser.add_argument(
            "--print", action="store_true", help="show the Flower command and do nothing"
        )


def link_command(args: Namespace) -> int:
    """Run the link in the foreground."""
    need_flower()
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.starting import start_link_command

    deployment = Deployment(args.folder.absolute())
    command = start_link_command(deployment, deployment.plan())
    log = deployment.coordinator / "link.log"
    return _run(args, command, deployment.flower_home, log)


def node_command(args: Namespace) -> int:
    """Run a site's node in the foreground."""
    need_flower()
    from fedbridge.deploy.folders import SiteFolder
    from fedbridge.deploy.starting import start_node_command

    site = SiteFolder(args.folder.absolute())
    command = start_node_command(site, site.settings())
    return _run(args, command, site.flower_home, site.folder / "node.log")


def register_command(args: Namespace) -> int:
    """Register what is not registered yet."""
    need_flower()
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.running import register_sites
    from fedbridge.deploy.starting import register_command, shown

    deployment = Deployment(args.folder.absolute())
    plan = deployment.plan()
    if args.print:
        commands = [register_command(deployment, site) for site in plan.sites]
        say([shown(commands, deployment.flower_home)])
        return 0
    new = register_sites(deployment, plan)
    if args.json:
        write_json({"registered": new, "sites": list(plan.sites)})
    else:
        say([f"{site}: {'registered' if site in new else 'known'}" for site in plan.sites])
    return 0


def run_command(args: Namespace) -> int:
    """Start a run and follow it to its end."""
    need_flower()
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.running import follow_run, start_run
    from fedbridge.deploy.starting import run_command, shown

    deployment = Deployment(args.folder.absolute())
    if args.print:
        say([shown([run_command(deployment)], deployment.flower_home)])
        return 0
    plan = deployment.plan()
    run_id = start_run(deployment, plan)
    state = follow_run(deployment, plan, run_id, _to_stderr)
    if args.json:
        write_json({"run_id": run_id, "status": state.status, "folder": str(deployment.run)})
    else:
        say([f"run {run_id}: {state.status}", f"folder: {deployment.run}"])
    if state.status == "completed":
        return 0
    fate = state.details or ("no reason given" if state.finished else "it goes on without us")
    return complain(f"run {run_id} is {state.status}: {fate}", FAILED)


def _run(args: Namespace, command: Sequence[str], home: Path, log: Path) -> int:
    from fedbridge.deploy.starting import run_until_stopped, shown

    if args.print:
        say([shown([command], home)])
        return 0
    return run_until_stopped(command, home, log, _to_stderr)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
