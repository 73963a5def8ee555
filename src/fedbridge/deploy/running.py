"""What the coordinator asks of its link: to know the sites, and to run the app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.deploy.folders import LINK_NAME, Deployment
from fedbridge.deploy.plan import DeploymentError
from fedbridge.deploy.starting import run_until_stopped
from fedbridge.engines.flower.cluster.control import Control
from fedbridge.engines.flower.pki import read_public_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedbridge.deploy.plan import Plan
    from fedbridge.engines.flower.cluster.control import RunState


def register_sites(deployment: Deployment, plan: Plan) -> list[str]:
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


def start_run(deployment: Deployment, plan: Plan) -> int:
    """Start a run of the app, which goes on from what is in the run's folder; its number."""
    if not deployment.schema.exists():
        raise DeploymentError(
            f"Expected the sites to have agreed on a schema, but there is no "
            f"{deployment.schema}: collect their descriptions and run `fedbridge deploy check`."
        )
    with _control(deployment, plan) as control:
        return control.submit(deployment.app, {"out": str(deployment.run)})


def follow_run(
    deployment: Deployment, plan: Plan, run_id: int, say: Callable[[str], object]
) -> RunState:
    """Show a run's output until it ends, or until Ctrl-C; how it is then."""
    command = ["flwr", "log", str(run_id), LINK_NAME, "--stream"]
    log = deployment.coordinator / f"run-{run_id}.log"
    run_until_stopped(command, deployment.flower_home, log, say)
    with _control(deployment, plan) as control:
        return control.run(run_id)


def _control(deployment: Deployment, plan: Plan) -> Control:
    return Control(plan.address, deployment.certificates.ca)
