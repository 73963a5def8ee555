"""The exact Flower commands of a deployment, shown or run, and what its link is asked for."""

from __future__ import annotations

import os
import re
import shlex
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import tomli_w

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import PRIVATE, parse_toml, read_text, write_atomically
from fedbridge.deploy import guard
from fedbridge.deploy.folders import (
    APPROVE,
    LINK_NAME,
    Deployment,
    DeploymentError,
    DeploymentPlan,
    SiteFolder,
    SiteSettings,
)
from fedbridge.deploy.reaching import LinkAwayError, reach_link
from fedbridge.flower.messages import CONTROL
from fedbridge.flower.options import SITE_FOLDER
from fedbridge.flower.pki import read_public_key
from fedbridge.flower.programs import (
    FLOWER_SETTINGS,
    LOOPBACK,
    Control,
    Identity,
    Node,
    RunState,
    SupervisedProcesses,
    app_settings,
    flower_environment,
    link_command,
    node_command,
    programs,
    termination_as_exit,
    uninterrupted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from fedbridge.flower.options import ConfigValue

EVERYWHERE = "0.0.0.0"
LOOK_EVERY = 0.3
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m|(?![\t\n])" + CONTROL.pattern)
"""Colours, and what else a terminal obeys: words of others are among what programs say."""

OTHER_KEY = (
    "another key than the one in its folder is registered as {!r} at the link; no run believes it: "
    "remove it with `flwr supernode unregister {} " + LINK_NAME + "`, and find out who registered "
    "it if the site has no new key."
)


NOT_ACTIVATED = "Failed to activate SuperNode"
NOT_REGISTERED = (
    "Expected the key of site {!r} to be registered at the link, but it is not: send {} to the "
    "coordinator, who puts it into the site's folder there and runs `fedbridge deploy register`, "
    "then start the node again."
)
NOT_LET_IN = (
    "Expected the link to let the node of site {!r} in, but it did not, {} times: either "
    "another node of this site runs somewhere (stop one of the two), or its key is not registered "
    "(the coordinator runs `fedbridge deploy register`), or the clock of this machine is wrong "
    "(`fedbridge deploy check` says)."
)
STILL_ONLINE = (
    "The link does not let this node in yet: it counts one that was killed, or lost its power, as "
    "online for up to a minute. Trying again in {:.0f} seconds; nothing need be done.\n"
)
TRIES, TRY_AGAIN_AFTER = 12, 10.0
"""So often, and after so many seconds: Flower takes a node for gone after a minute of silence."""


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
        config=site.node_config,
        identity=Identity(site.ca, site.key.private),
    )


def write_node_files(site: SiteFolder) -> None:
    """What a node needs besides its site's settings: these in Flower's form, and our guard.

    Flower's node takes no lists, and needs none: who looks at these is the guard.
    """
    plain = {k: v for k, v in parse_toml(read_text(site.settings_file)).items() if k != APPROVE}
    write_atomically(site.node_config, tomli_w.dumps(plain), PRIVATE)
    program = site.programs / guard.PROGRAM
    write_atomically(program, f'#!/bin/sh\nexec python -m {guard.__name__} "$@"\n')
    program.chmod(0o700)


def register_command(deployment: Deployment, site: str) -> list[str]:
    """Let a site take part under its name."""
    key = deployment.site(site).key.public
    return ["flwr", "supernode", "register", str(key), LINK_NAME, "--name", site]


def run_command(deployment: Deployment) -> list[str]:
    """Run the app and show what it says; ``out`` is where a stopped run goes on from."""
    config = " ".join(f'{name}="{path}"' for name, path in _places(deployment).items())
    app = str(deployment.app)
    return ["flwr", "run", app, LINK_NAME, "--stream", "--run-config", config]


def _places(deployment: Deployment) -> dict[str, str]:
    """Where a run finds things at the coordinator; an app of an earlier version asks for fewer."""
    places = {"out": deployment.run, "keys": deployment.sites, "members": deployment.members}
    written = (deployment.app / "pyproject.toml").exists()
    known = app_settings(deployment.app) if written else places
    return {name: str(path) for name, path in places.items() if name in known}


def flower_config(deployment: Deployment, plan: DeploymentPlan) -> str:
    """Flower's own configuration of the coordinator: where the link is and how to know it."""
    ca = str(deployment.certificates.ca.absolute())
    link = {"address": plan.address, "root-certificates": ca}
    return tomli_w.dumps({"superlink": {"default": LINK_NAME, LINK_NAME: link}})


def settings_for(place: Deployment | SiteFolder) -> dict[str, str]:
    """What Flower's programs are told by the environment: no telemetry, no installations.

    A node also hears which folder is its site's, where the target keeps its model.
    """
    own = {SITE_FOLDER: str(place.folder)} if isinstance(place, SiteFolder) else {}
    return {**FLOWER_SETTINGS, "FLWR_HOME": str(place.flower_home), **own}


def shown(commands: Iterable[Sequence[str]], place: Deployment | SiteFolder) -> str:
    """Commands as one would type them, after what they need to be told by the environment."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings_for(place).items()]
    if isinstance(place, SiteFolder):
        lines.append(f"export PATH={shlex.quote(str(place.programs))}:$PATH")
    return "\n".join([*lines, *map(shlex.join, commands)])


def run_until_stopped(
    command: Sequence[str],
    place: Deployment | SiteFolder,
    log: Path,
    say: Callable[[str], object],
    *,
    gently: bool = False,
) -> int:
    """Run a program in the foreground until it ends or Ctrl-C; none of its children is left.

    ``say`` is called with each piece of output, which ``log`` keeps; ``gently`` leaves the program
    some seconds to take leave.
    """
    read = log.stat().st_size if log.exists() else 0
    code = None
    with termination_as_exit():
        processes = SupervisedProcesses(gently=gently)
        try:
            program = str(programs() / command[0])
            told = {**flower_environment(place.flower_home), **settings_for(place)}
            if isinstance(place, SiteFolder):
                told["PATH"] = os.pathsep.join((str(place.programs), told["PATH"]))
            processes.start("it", [program, *command[1:]], log, told)
            while code is None:
                code = processes.exit_code("it")
                time.sleep(LOOK_EVERY)
                news = _from(log, read)
                read += len(news)
                say(SEQUENCE.sub("", news.decode(errors="replace")))
        except KeyboardInterrupt:
            code = 0
        finally:
            with uninterrupted():
                processes.close()
    return code


def run_node(site: SiteFolder, settings: SiteSettings, say: Callable[[str], object]) -> int:
    """Run a site's node in the foreground; one that the link does not know is told so.

    Flower says only that a node could not be activated, and so it does when the link still counts
    its predecessor as online. That passes, so the node is started again until it is let in: whoever
    restarts a machine need not come back to it.
    """
    with suppress(LinkAwayError):  # it may come yet
        reach_link(settings.link, site.ca)
    write_node_files(site)
    command, log = start_node_command(site, settings), site.folder / "node.log"
    for _ in range(TRIES):
        if is_registered(site, settings) is False:
            raise DeploymentError(NOT_REGISTERED.format(settings.site, site.key.public))
        known = log.stat().st_size if log.exists() else 0
        code = run_until_stopped(command, site, log, say, gently=True)
        if code == 0 or NOT_ACTIVATED not in _from(log, known).decode(errors="replace"):
            return code
        say(STILL_ONLINE.format(TRY_AGAIN_AFTER))
        time.sleep(TRY_AGAIN_AFTER)
    raise DeploymentError(NOT_LET_IN.format(settings.site, TRIES))


def is_registered(site: SiteFolder, settings: SiteSettings) -> bool | None:
    """Whether the link knows this site's key; None if it does not say."""
    try:
        own = read_public_key(site.key.public)
        with Control(settings.link, site.ca) as control:
            return any(node.public_key == own for node in control.nodes())
    except (FedbridgeError, OSError):
        return None


def _from(log: Path, position: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read()


def register_sites(deployment: Deployment, plan: DeploymentPlan) -> list[str]:
    """Register every site's key under its name; the names of those that were new.

    Raises:
        DeploymentError: When a name is registered with another key, which is then in force.
    """
    keys = deployment.public_keys()
    with _control(deployment, plan) as control:
        nodes = control.nodes()
        for _, complaint in other_keys(nodes, keys):
            raise DeploymentError(f"Expected no key but the site's own, but {complaint}")
        known = [node.public_key for node in nodes]
        new = [name for name, key in keys.items() if key not in known]
        for name in new:
            control.register(deployment.site(name).key.public, name)
    return new


def other_keys(nodes: Iterable[Node], keys: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Sites under whose name the link has keys that are not theirs, and what to do about each.

    A link registers as many keys under one name as it is asked to.
    """
    others = [n for n in nodes if keys.get(n.name, n.public_key) != n.public_key]
    return [(node.name, OTHER_KEY.format(node.name, node.node_id)) for node in others]


def start_run(
    deployment: Deployment,
    plan: DeploymentPlan,
    say: Callable[[str], object],
    config: Mapping[str, ConfigValue] | None = None,
) -> int:
    """Start a run of the app, which goes on from what is in the run's folder; its number.

    ``say`` is called with each key under a site's name that the run will not believe; ``config`` is
    what the run is told otherwise than the plan says.
    """
    if not deployment.schema.exists():
        raise DeploymentError(
            f"Expected the sites to have agreed on a schema, but there is no "
            f"{deployment.schema}: collect their descriptions and run `fedbridge deploy check`."
        )
    with _control(deployment, plan) as control:
        for _, complaint in other_keys(control.nodes(), deployment.public_keys()):
            say(f"{complaint}\n")
        return control.submit(deployment.app, {**_places(deployment), **(config or {})})


def follow_run(
    deployment: Deployment, plan: DeploymentPlan, run_id: int, say: Callable[[str], object]
) -> RunState:
    """Show a run's output until it ends, or until Ctrl-C; how it is then."""
    command = ["flwr", "log", str(run_id), LINK_NAME, "--stream"]
    log = deployment.coordinator / f"run-{run_id}.log"
    run_until_stopped(command, deployment, log, say)
    with _control(deployment, plan) as control:
        return control.run(run_id)


def _control(deployment: Deployment, plan: DeploymentPlan) -> Control:
    return Control(plan.address, deployment.certificates.ca)
