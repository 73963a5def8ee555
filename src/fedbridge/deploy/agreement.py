"""Whether all sites mean the same by their data: the schema that they agree on, or a way to it."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from fedbridge.base.errors import EmptyColumnError, FedbridgeError, NotAgreedError, SeveralError
from fedbridge.base.files import to_json, write_atomically
from fedbridge.data.site_arrays import agree_arrays
from fedbridge.data.tables.proposals import propose
from fedbridge.data.tables.schema import TableSummary, agree, kinds_of, shared_columns
from fedbridge.deploy.findings import Finding, proposals
from fedbridge.deploy.loading import ARRAYS, positive_class
from fedbridge.runs.members import Members, read_members, write_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fedbridge.data.site_arrays import ArraySummary
    from fedbridge.data.tables.proposals import Proposal
    from fedbridge.deploy.description import Description
    from fedbridge.deploy.folders import Deployment, DeploymentPlan


def agreement(
    deployment: Deployment, plan: DeploymentPlan, described: Mapping[str, Description]
) -> list[Finding]:
    """With every site's word, the schema; it goes into the app that all nodes receive."""
    order = _in_order(deployment, described)
    if plan.arrays is not None:
        known = {name: own.arrays for name in order if (own := described[name]).arrays}
        return _agreed_arrays(deployment, plan, known)
    sites = {name: described[name].summary.of(plan.reading.columns) for name in order}
    problems: list[FedbridgeError] = []
    try:
        schema, notes = agree(sites, plan.reading)
    except SeveralError as error:
        problems, notes = [*error.errors], getattr(error, "__notes__", [])
    except FedbridgeError as error:
        problems, notes = [error], getattr(error, "__notes__", [])
    problems += [
        EmptyColumnError(
            f"Expected values in column {column!r} at every site, but {', '.join(empty)} has none: "
            f"fill it in there, or leave it out."
        )
        for column in shared_columns(sites)
        if column not in plan.reading.impute and (empty := _unreadable(column, sites, plan))
    ]
    if problems:
        found = [Finding("agreement", "problem", str(problem)) for problem in problems]
        proposed = propose(sites, plan.reading, plan.target)
        found += proposals(proposed)
        found += _way_out(deployment, plan, sites, proposed)
    else:
        positive_class(schema, plan.positive)
        _settle(deployment, plan, schema.to_json())
        predicted = "a number" if schema.n_classes is None else f"{schema.n_classes} classes"
        said = f"{len(schema.kinds)} columns, {predicted}; written into the app"
        found = [Finding("agreement", "ok", said)]
    return [*found, *(Finding("agreement", "note", note) for note in notes)]


def _settle(deployment: Deployment, plan: DeploymentPlan, schema: str) -> None:
    """Write down what the sites agreed on, and that they all belong to the federation.

    A run that goes on has sent out what its members agreed on before: newcomers must fit that.
    """
    before = read_members(deployment.members)
    new = [name for name in plan.sources if name not in before.sources]
    if new and deployment.run.exists() and before.sources and deployment.schema.exists():
        if deployment.schema.read_text(encoding="utf-8") != schema:
            raise NotAgreedError(
                f"Expected {', '.join(new)} to fit what the members of the run agreed on, but it "
                f"brings other columns, categories or labels: let it map them in its site.toml "
                f"(rename, recode, label-map), or begin a new run with `fedbridge deploy change "
                f"--sites`."
            )
    else:
        write_atomically(deployment.schema, schema)
    write_members(deployment.members, Members(plan.sources, plan.left))


def _in_order(deployment: Deployment, names: Iterable[str]) -> list[str]:
    """Sites by name, but newcomers last: what was agreed on goes by who was there before."""
    known = read_members(deployment.members).sources
    new = [name for name in deployment.plan().sources if known and name not in known]
    return sorted(names, key=lambda name: (name in new, name))


def _agreed_arrays(
    deployment: Deployment, plan: DeploymentPlan, sites: Mapping[str, ArraySummary]
) -> list[Finding]:
    """The same where sites have images or arrays."""
    agreed, notes = agree_arrays(sites)
    positive_class(agreed, plan.positive)
    _settle(deployment, plan, to_json({ARRAYS: agreed.record()}, indent=2) + "\n")
    found = [Finding("agreement", "ok", f"{agreed.in_words()}; written into the app")]
    return [*found, *(Finding("agreement", "note", note) for note in notes)]


def _unreadable(column: str, sites: Mapping[str, TableSummary], plan: DeploymentPlan) -> list[str]:
    """The sites where a run cannot fill an empty column, since no other site's rows are there."""
    kinds = kinds_of(sites, column, plan.reading.categorical)
    empty = [name for name, own in sites.items() if own.columns[column].kind is None]
    return [name for name in empty if "categorical" in kinds or (kinds and name == plan.target)]


def _way_out(
    deployment: Deployment,
    plan: DeploymentPlan,
    sites: Mapping[str, TableSummary],
    proposed: Sequence[Proposal],
) -> Iterator[Finding]:
    """The commands that leave out what sites do not have alike, or impute what few of them lack."""
    codes, impute = plan.reading.categorical, plan.reading.impute
    every = list(dict.fromkeys(column for own in sites.values() for column in own.columns))
    shared = shared_columns(sites)
    alike = [
        column
        for column in every
        if (column in impute)
        or (
            column in shared
            and len(kinds_of(sites, column, codes)) == 1
            and not _unreadable(column, sites, plan)
        )
    ]
    change = ["fedbridge", "deploy", "change", str(deployment.folder)]
    known = Counter(c for own in sites.values() for c, here in own.columns.items() if here.kind)
    known.update(own.new for own in proposed if own.column is None)
    lacking = [c for c in every if c not in shared or _unreadable(c, sites, plan)]
    most = [c for c in lacking if c not in impute and len(sites) <= 2 * known[c] < 2 * len(sites)]
    if most:
        said = (
            f"{', '.join(map(repr, most))}: some sites lack it, or have left it out as a likely "
            f"identifier (`keep-columns` in site.toml); the command below lets it be imputed "
            f"there, which an input of its own says"
        )
        words = [*change, "--impute", ",".join((*impute, *most))]
        yield Finding("agreement", "note", said, shlex.join(words))
    if alike and {*alike} != {*every}:
        said = f"{len(alike)} columns all sites have alike: the command below uses only these"
        words = [*change, "--columns", ",".join(alike)]
        yield Finding("agreement", "note", said, shlex.join(words))
