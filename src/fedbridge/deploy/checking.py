"""``deploy check``: is everything in order, here at the coordinator or there at a site?

Everything that would fail later is to be found here, and all of it at once: every exchange of
letters between sites takes days.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from fedbridge.base.errors import DataError, FedbridgeError
from fedbridge.deploy import folder_checks
from fedbridge.deploy.advising import approvals
from fedbridge.deploy.agreement import agreement
from fedbridge.deploy.approval import approving
from fedbridge.deploy.changing import site_command
from fedbridge.deploy.description import (
    Description,
    differences,
    otherwise,
    own_versions,
    read_description,
)
from fedbridge.deploy.findings import Finding, FindingState, OtherwiseError, Report, looked_at
from fedbridge.deploy.folders import (
    Deployment,
    DeploymentError,
    DeploymentPlan,
    SiteFolder,
    what_it_is,
)
from fedbridge.deploy.running import other_keys
from fedbridge.deploy.site_check import check_site
from fedbridge.flower import pki
from fedbridge.flower.programs import Control

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check(folder: Path, *, counts: bool = True) -> Report:
    """Check a deployment's folder, or the folder of one site, whichever this is.

    With ``counts`` a site's description says how many rows it has.
    """
    if Deployment(folder).plan_file.exists():
        return Report(tuple(_coordinator(Deployment(folder))))
    if SiteFolder(folder).settings_file.exists():
        return Report(tuple(check_site(SiteFolder(folder), counts=counts)))
    raise DeploymentError(
        f"Expected a deployment's folder (with plan.json) or a site's (with site.toml), but "
        f"{str(folder)!r} has neither: make one with `fedbridge deploy init`."
    )


def _coordinator(deployment: Deployment) -> Iterator[Finding]:
    plan = deployment.plan()
    sources = ", ".join(plan.sources)
    yield Finding("plan", "ok", f"sources {sources}; target {plan.target}; {plan.address}")
    yield Finding("versions", "ok", folder_checks.versions())
    yield from looked_at("modes", lambda: folder_checks.modes(deployment.folder))
    yield from looked_at("certificates", lambda: _certificates(deployment, plan))
    described: dict[str, Description] = {}
    for name, why in plan.left.items():
        yield Finding(f"{name}: left", "note", f"has left for good: {why}")
    for name in plan.present:
        yield from looked_at(f"{name}: key", partial(_public_key, deployment.site(name)))
        yield from looked_at(f"{name}: data", partial(_told, deployment, name, described))
    yield from looked_at("agreement", lambda: _agreed(deployment, plan, described))
    if deployment.schema.exists():
        yield from looked_at("app", lambda: [_approvable(deployment)])
    reached = looked_at(
        "link", lambda: folder_checks.reached(plan.address, deployment.certificates.ca)
    )
    yield from reached
    if all(finding.state == "ok" for finding in reached):
        yield from looked_at("registration", lambda: _registered(deployment, plan))


def _approvable(deployment: Deployment) -> Finding:
    """What a site that approves runs one by one is told, by another way than the link."""
    said = (
        "the line below is for the site.toml of sites that approve runs one by one: the hashes of "
        "the run and of its usual advice"
    )
    return Finding("app", "ok", said, approving(approvals(deployment.app)))


def _certificates(deployment: Deployment, plan: DeploymentPlan) -> list[Finding]:
    files = deployment.certificates
    pki.check_certificates(deployment.coordinator, plan.host)
    found = [
        folder_checks.valid_until(pki.read_certificate(files.server), f"the link at {plan.host}"),
        *folder_checks.authority(files.ca),
    ]
    old = pki.signer(files)
    if old != pki.read_authorities(files.ca)[0]:
        said = (
            f"the link still has a certificate of the old authority, which ends on "
            f"{old.not_valid_after_utc:%Y-%m-%d}: give every site the new ca.crt, then run "
            f"`fedbridge deploy renew` again and restart the link"
        )
        found.append(Finding("certificates", "warning", said))
    return found


def _public_key(site: SiteFolder) -> list[Finding]:
    what, public = f"{site.folder.name}: key", pki.read_public_key(site.key.public)
    if not site.key.private.exists():
        return [Finding(what, "ok", "public key is here")]
    if pki.check_private_key(site.key.private) != public:
        raise FedbridgeError(
            f"Expected {site.key.public} to belong to the private key beside it, but it does "
            f"not: delete the private one if the site has made its own."
        )
    said = "the private key is still here: delete it once the site has it"
    return [Finding(what, "note", said)]


def _told(deployment: Deployment, name: str, described: dict[str, Description]) -> str:
    """Look at one site's description; a good one joins the others."""
    plan, file = deployment.plan(), deployment.site(name).description
    if not file.exists():
        raise DeploymentError(
            f"Expected what site {name!r} says of its data, but there is no {file}: let it run "
            f"`fedbridge deploy check` in its folder and send its description.json."
        )
    found = read_description(file)
    if found.site != name:
        raise DeploymentError(
            f"Expected the description of site {name!r} in {file}, but it is that of "
            f"{found.site!r}: put it into sites/{found.site}/ and ask {name!r} for its own."
        )
    other = otherwise(plan, found)
    if other:
        raise OtherwiseError(
            f"Expected site {name!r} to describe its data as planned, but it has another "
            f"{', '.join(other)}: let it type the command below in its folder, and send its new "
            f"description.json.",
            site_command(other),
        )
    if (found.arrays is None) != (plan.arrays is None):
        raise DeploymentError(
            f"Expected {what_it_is(plan)} at site {name!r}, as planned, but it has described other "
            f"data: hand out its site.toml again."
        )
    described[name] = found
    odd = differences(own_versions(), found.versions)
    if odd:
        raise DeploymentError(
            f"Expected the coordinator's versions at site {name!r}, but it has {', '.join(odd)}: "
            f"install the same, then let it check again."
        )
    return "described" if found.rows is None else f"{found.rows} rows, {found.labelled} labelled"


def _agreed(
    deployment: Deployment, plan: DeploymentPlan, described: dict[str, Description]
) -> list[Finding]:
    """What the sites agree on, once all of them have described their data."""
    silent = [name for name in plan.present if name not in described]
    if silent:
        raise DataError(
            f"Expected a description of every site before they can agree, but those of "
            f"{', '.join(silent)} are missing or not in order."
        )
    for name in plan.left:  # who still has a part in what was agreed on
        with suppress(FedbridgeError):
            _told(deployment, name, described)
    return agreement(deployment, plan, described)


def _registered(deployment: Deployment, plan: DeploymentPlan) -> list[Finding]:
    with Control(plan.address, deployment.certificates.ca) as control:
        listed = control.nodes()
    keys = deployment.public_keys()
    nodes = {node.public_key: node for node in listed}
    found = [Finding(f"{name}: node", "problem", text) for name, text in other_keys(listed, keys)]
    for name, key in keys.items():
        node = nodes.get(key)
        state: FindingState = "problem"
        if node is None:
            said = "its key is not registered: run `fedbridge deploy register`"
        elif not node.online:
            said = "registered, but not online: let the site run `fedbridge deploy node`"
        else:
            state, said = "ok", "registered and online"
        found.append(Finding(f"{name}: node", state, said))
    return found
