"""The exact Flower commands of a deployment, shown or run, and what its link is asked for."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

import tomli_w

from fedbridge.deploy.folders import LINK_NAME, Deployment, DeploymentError
from fedbridge.flower.pki import read_public_key
from fedbridge.flower.programs import (
    FLOWER_SETTINGS,
    LOOPBACK,
    Control,
    Identity,
    SupervisedProcesses,
    flower_environment,
    link_command,
    node_command,
    programs,
    termination_as_exit,
    uninterrupted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fedbridge.deploy.folders import Deployment, DeploymentPlan, SiteFolder, SiteSettings
    from fedbridge.flower.programs import RunState

EVERYWHERE = "0.0.0.0"
LOOK_EVERY = 0.3


def start_link_command(deployment: Deployment, plan: DeploymentPlan) -> list[str]:
    """Start the link: TLS, and only sites whose key is registered."""
    return link_command(
        LOOPBACK if plan.host in ("localhost", LOOPBACK) else EVERYWHERE,
        plan.port,
        database=deployment.database,
        certificates=deployment.certificates,
    )


def start_node_command(site: SiteFolder, settings: SiteSettings) -> list[str]:
    """Start a site's node: it calls the link, which needs no open port at the site."""
    return node_command(
        settings.link,
        port=settings.port,
        config=site.settings_file,
        identity=Identity(site.ca, site.key.private),
    )


def register_command(deployment: Deployment, site: str) -> list[str]:
    """Let a site take part under its name."""
    key = deployment.site(site).key.public
    return ["flwr", "supernode", "register", str(key), LINK_NAME, "--name", site]


def run_command(deployment: Deployment) -> list[str]:
    """Run the app and show what it says; ``out`` is where a stopped run goes on from."""
    config = f'out="{deployment.run}"'
    app = str(deployment.app)
    return ["flwr", "run", app, LINK_NAME, "--stream", "--run-config", config]


def flower_config(deployment: Deployment, plan: DeploymentPlan) -> str:
    """Flower's own configuration of the coordinator: where the link is and how to know it."""
    ca = str(deployment.certificates.ca.absolute())
    link = {"address": plan.address, "root-certificates": ca}
    return tomli_w.dumps({"superlink": {"default": LINK_NAME, LINK_NAME: link}})


def settings_for(home: Path) -> dict[str, str]:
    """What Flower's programs are told by the environment: no telemetry, no installations."""
    return {**FLOWER_SETTINGS, "FLWR_HOME": str(home)}


def shown(commands: Iterable[Sequence[str]], home: Path) -> str:
    """Commands as one would type them, after what they need to be told by the environment."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings_for(home).items()]
    return "\n".join([*lines, *map(shlex.join, commands)])


def run_until_stopped(
    command: Sequence[str], home: Path, log: Path, say: Callable[[str], object]
) -> int:
    """Run a program in the foreground until it ends or Ctrl-C; none of its children is left.

    Args:
        command: The program, found beside this Python.
        home: Flower's home.
        log: Where its output is kept.
        say: Called with each piece of output.
    """
    read = log.stat().st_size if log.exists() else 0
    code = None
    with termination_as_exit():
        processes = SupervisedProcesses()
        try:
            program = str(programs() / command[0])
            processes.start("it", [program, *command[1:]], log, flower_environment(home))
            while code is None:
                code = processes.exit_code("it")
                time.sleep(LOOK_EVERY)
                news = _from(log, read)
                read += len(news)
                say(news.decode(errors="replace"))
        except KeyboardInterrupt:
            code = 0
        finally:
            with uninterrupted():
                processes.close()
    return code


def _from(log: Path, position: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read()


def register_sites(deployment: Deployment, plan: DeploymentPlan) -> list[str]:
    """Register every site's key under its name; the names of those that were new.

    Raises:
        DeploymentError: When a name is registered with another key, which is then in force.
    """
    keys = {name: read_public_key(deployment.site(name).key.public) for name in plan.sites}
    with _control(deployment, plan) as control:
        known = {node.name: node.public_key for node in control.nodes()}
        for name, key in keys.items():
            if known.get(name, key) != key:
                raise DeploymentError(
                    f"Expected the key of site {name!r} to be new or registered, but another key "
                    f"is registered under this name: remove that one first with `flwr supernode "
                    f"unregister` (its number is in `flwr supernode list`)."
                )
        new = [name for name in keys if name not in known]
        for name in new:
            control.register(deployment.site(name).key.public, name)
    return new


def start_run(deployment: Deployment, plan: DeploymentPlan) -> int:
    """Start a run of the app, which goes on from what is in the run's folder; its number."""
    if not deployment.schema.exists():
        raise DeploymentError(
            f"Expected the sites to have agreed on a schema, but there is no "
            f"{deployment.schema}: collect their descriptions and run `fedbridge deploy check`."
        )
    with _control(deployment, plan) as control:
        return control.submit(deployment.app, {"out": str(deployment.run)})


def follow_run(
    deployment: Deployment, plan: DeploymentPlan, run_id: int, say: Callable[[str], object]
) -> RunState:
    """Show a run's output until it ends, or until Ctrl-C; how it is then."""
    command = ["flwr", "log", str(run_id), LINK_NAME, "--stream"]
    log = deployment.coordinator / f"run-{run_id}.log"
    run_until_stopped(command, deployment.flower_home, log, say)
    with _control(deployment, plan) as control:
        return control.run(run_id)


def _control(deployment: Deployment, plan: DeploymentPlan) -> Control:
    return Control(plan.address, deployment.certificates.ca)
