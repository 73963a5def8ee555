"""Another plan for a deployment that is there: columns, sites, method, rounds.

``plan.json`` decides. What follows from it is written anew, and nothing else moves: certificates,
keys, descriptions and a site's own settings stay. What a site agreed to, only the site can change,
with a command that it is sent.
"""

from __future__ import annotations

import shlex
import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tomli_w

from fedbridge.base.errors import FedbridgeError, OptionError, nearest
from fedbridge.base.files import write_atomically
from fedbridge.data.labels import show
from fedbridge.deploy.description import Description, read_description
from fedbridge.deploy.folders import (
    NODE_PORT,
    Deployment,
    DeploymentError,
    DeploymentPlan,
    SiteFolder,
    changed_settings,
)
from fedbridge.deploy.installing import write_installation
from fedbridge.deploy.writing import run_config, runbook, start_here, write_site
from fedbridge.runs.members import Members, read_members, write_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    Values = Mapping[str, str | int | float]

GOES_ON = ("rounds", "network")
"""What may change of a plan without a new beginning of its run."""


@dataclass(frozen=True)
class Changed:
    """What has changed, and what follows.

    Attributes:
        changed: names of what is another than before.
        done: what was written or put aside.
        sites: for every site that has to act, its command.
        next: what the coordinator does now.
    """

    changed: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    sites: Mapping[str, str] | None = None
    next: tuple[str, ...] = ()


def site_command(values: Values, folder: str = ".") -> str:
    """What a site types to change its own settings, and to describe its data again."""
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    change = shlex.join(["fedbridge", "deploy", "change", folder, *words])
    return f"{change} && {shlex.join(['fedbridge', 'deploy', 'check', folder])}"


def change_site(site: SiteFolder, values: Values) -> list[str]:
    """Change what a site has agreed to; the names of what is another than before."""
    before = site.settings_file.read_text(encoding="utf-8")
    had = tomllib.loads(before)
    other = {name: value for name, value in values.items() if had.get(name) != value}
    write_atomically(site.settings_file, changed_settings(before, other))
    try:
        site.settings()
    except DeploymentError:
        write_atomically(site.settings_file, before)
        raise
    return list(other)


def join_and_leave(
    plan: DeploymentPlan, join: Sequence[str], leave: Sequence[str], why: str
) -> DeploymentPlan:
    """A plan with more sources at the end, and without some; its run can go on.

    Who comes back after it had left has its old place again.
    """
    strangers = [name for name in leave if name not in plan.sources or name in plan.left]
    if strangers:
        raise OptionError(
            f"Expected a source of this deployment to leave, but got {strangers[0]!r}: it has "
            f"{', '.join(name for name in plan.present if name != plan.target)}."
        )
    known = [name for name in join if name in plan.present]
    if known:
        raise OptionError(f"Expected somebody new to join, but {known[0]!r} is there already.")
    if join and isinstance(plan.options.get("beta"), list):
        raise OptionError(
            "Expected one `beta` for all where sources join, but this plan has one for each: begin "
            "a new run with --sites and --beta."
        )
    left = {name: said for name, said in plan.left.items() if name not in join}
    left |= dict.fromkeys(leave, why)
    if {*plan.sources} <= {*left} - {*join}:
        raise OptionError("Expected at least one source to stay, but all of them would have left.")
    new = tuple(name for name in join if name not in plan.sources)
    return replace(plan, sources=(*plan.sources, *new), left=left)


def change_deployment(
    deployment: Deployment, plan: DeploymentPlan, *, goes_on: bool = False
) -> Changed:
    """Make a deployment one of this plan, with its certificates and keys as they are.

    With ``goes_on`` only members join or leave, and the run that is there goes on; otherwise who
    has left is no part of the next run.
    """
    before = deployment.plan()
    _check_columns(deployment, plan)
    if plan.left and not goes_on and _begins_anew(before, plan):
        staying = tuple(name for name in plan.sources if name not in plan.left)
        plan = replace(plan, sources=staying, left={})
        write_members(deployment.members, Members(staying))
    if (before.host, before.port) != (plan.host, plan.port):
        raise DeploymentError(
            f"Expected the link to stay at {before.address}, which its certificate is for, but got "
            f"{plan.address}: make a new deployment with `fedbridge deploy init`."
        )
    if (before.arrays and before.arrays.form) != (plan.arrays and plan.arrays.form):
        raise DeploymentError(
            "Expected data of the same form as before, but got another --form: make a new "
            "deployment with `fedbridge deploy init`."
        )
    changed = tuple(
        name for name in DeploymentPlan.__dataclass_fields__ if _differ(before, plan, name)
    )
    if not changed:
        return Changed()
    done = [
        *_write_sites(deployment, before, plan),
        *([] if goes_on else _put_aside(deployment, {*changed} - {*GOES_ON})),
    ]
    if goes_on:
        members = read_members(deployment.members)
        if members.sources:
            write_members(deployment.members, replace(members, left=plan.left))
    elif {"sources", "target", "reading", "arrays"} & {*changed}:
        deployment.schema.unlink(missing_ok=True)
    _write_app(deployment, before, plan)
    write_atomically(deployment.runbook, runbook(deployment, plan))
    write_atomically(deployment.plan_file, plan.to_json())
    asked = {
        name: site_command(values)
        for name in before.sites
        if name in plan.sites and (values := _to_agree(before, plan, name))
    }
    new = [name for name in plan.present if name not in before.present]
    return Changed(changed, tuple(done), asked, tuple(_next(deployment, new, asked)))


def _begins_anew(before: DeploymentPlan, plan: DeploymentPlan) -> bool:
    names = {*DeploymentPlan.__dataclass_fields__} - {*GOES_ON}
    return any(_differ(before, plan, name) for name in names)


def _check_columns(deployment: Deployment, plan: DeploymentPlan) -> None:
    """Refuse columns that no site has, as far as all of them have described all that they have."""
    known: set[str] = set()
    for name in plan.present:
        said = _described(deployment, name)
        if said is None or said.arrays is not None or said.reading.columns is not None:
            return
        known |= {said.reading.label_column, *said.summary.columns}
    reading = plan.reading
    for option, names in (
        ("--columns", reading.columns or ()),
        ("--categorical", reading.categorical),
        ("--impute", reading.impute),
    ):
        for name in names:
            if name not in known:
                raise OptionError(
                    f"Expected {option} to name columns that some site has described, but got "
                    f"{name!r}.{nearest(name, known)} Sites have: {show(sorted(known))}."
                )


def _described(deployment: Deployment, name: str) -> Description | None:
    """What a site has said of its data; None if that is not here, or cannot be read."""
    with suppress(FedbridgeError):
        file = deployment.site(name).description
        return read_description(file) if file.exists() else None
    return None


def _differ(one: DeploymentPlan, other: DeploymentPlan, name: str) -> bool:
    mine, theirs = getattr(one, name), getattr(other, name)
    return bool(mine != theirs)


def _to_agree(before: DeploymentPlan, plan: DeploymentPlan, site: str) -> dict[str, Any]:
    """What a site has to change in its settings; fewer columns need nobody's word."""
    had, wanted = before.agreed(site), plan.agreed(site)
    other = {name: value for name, value in wanted.items() if had.get(name) != value}
    known, chosen = before.reading.columns, plan.reading.columns
    if "columns" in other and chosen is not None and (known is None or {*chosen} <= {*known}):
        del other["columns"]
    if "impute" in other and known is None:  # then each has described all that it has
        del other["impute"]
    return other


def _write_sites(
    deployment: Deployment, before: DeploymentPlan, plan: DeploymentPlan
) -> Iterable[str]:
    """Folders of new sites, and what the copies here of the others' settings say."""
    ports = range(NODE_PORT, NODE_PORT + len({*before.sites, *plan.sites}))
    taken = {deployment.site(name).settings().port for name in before.sites}
    free = iter(port for port in ports if port not in taken)
    for name in plan.sites:
        site = deployment.site(name)
        if not site.folder.exists():
            write_site(plan, deployment, name, next(free))
            yield f"{site.folder}: written, with keys of its own"
        elif site.settings_file.exists():
            change_site(site, plan.agreed(name))
            write_installation(site.folder)
            write_atomically(site.start_here, start_here(plan, name))
    for name in before.present:
        if name not in plan.present:
            yield f"{deployment.site(name).folder}: left alone; the site takes no part any more"


def _put_aside(deployment: Deployment, changed: set[str]) -> Iterable[str]:
    """Make room for another run; the one that is there keeps its files."""
    if changed and deployment.run.exists():
        aside = _free(deployment.run)
        deployment.run.rename(aside)
        yield f"{aside}: the run of the plan before"


def _free(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return aside


def _write_app(deployment: Deployment, before: DeploymentPlan, plan: DeploymentPlan) -> None:
    """The settings of the run that have changed; what somebody has written there himself stays."""
    file = deployment.app / "pyproject.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    config = content["tool"]["flwr"]["app"]["config"]
    old, new = run_config(before, deployment.sites), run_config(plan, deployment.sites)
    config |= {name: value for name, value in new.items() if old.get(name) != value}
    write_atomically(file, tomli_w.dumps(content))


def _next(deployment: Deployment, new: list[str], asked: Mapping[str, str]) -> Iterable[str]:
    folder = shlex.quote(str(deployment.folder))
    if new:
        yield f"hand out {', '.join(f'sites/{name}' for name in new)}, as in step 1 of the runbook"
        yield f"fedbridge deploy register {folder}"
    if new or asked:
        yield "put the new description.json of these sites into sites/NAME/"
    yield f"fedbridge deploy check {folder}"
