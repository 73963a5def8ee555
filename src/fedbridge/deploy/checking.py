"""``deploy check``: is everything in order, here at the coordinator or there at a site?

Everything that would fail later is to be found here, and all of it at once: every exchange of
letters between sites takes days.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedbridge.base.errors import (
    DataError,
    EmptyColumnError,
    FedbridgeError,
    NotAgreedError,
    NotANumberError,
    SeveralError,
)
from fedbridge.base.files import to_json, write_atomically
from fedbridge.data.site_arrays import agree_arrays
from fedbridge.data.tables.proposals import propose, propose_names
from fedbridge.data.tables.schema import (
    Schema,
    TableSummary,
    agree,
    kinds_of,
    shared_columns,
)
from fedbridge.deploy.approval import hash_of_app
from fedbridge.deploy.changing import site_command
from fedbridge.deploy.description import (
    Description,
    describe_site,
    differences,
    otherwise,
    own_versions,
    read_description,
)
from fedbridge.deploy.folders import (
    Deployment,
    DeploymentError,
    DeploymentPlan,
    SiteFolder,
    SiteSettings,
    what_it_is,
)
from fedbridge.deploy.loading import ARRAYS, reader
from fedbridge.deploy.reaching import LinkAwayError, reach_link
from fedbridge.deploy.running import is_registered, other_keys
from fedbridge.deploy.site_log import SiteLog
from fedbridge.federation.settings import check_device
from fedbridge.flower import pki
from fedbridge.flower.privacy import epsilon
from fedbridge.flower.programs import Control
from fedbridge.runs.members import Members, read_members, write_members
from fedbridge.training.accountant import Look, composed_epsilon
from fedbridge.training.record_privacy import RecordPrivacy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cryptography.x509 import Certificate

    from fedbridge.data.site_arrays import ArraySummary
    from fedbridge.data.tables.proposals import Proposal

FindingState = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what was found; a problem says what to do as well.

    Attributes:
        what: the thing.
        state: whether it is in order.
        said: what was found.
        command: what to type or to paste, on lines of its own; empty if nothing.
    """

    what: str
    state: FindingState
    said: str
    command: str = ""


@dataclass(frozen=True)
class Report:
    """All findings of a check, in order."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return all(finding.state != "problem" for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}


def looked_at(what: str, look: Callable[[], str | Iterable[Finding]]) -> list[Finding]:
    """Look at one thing: what it says, its own findings, or the problems that it raises."""
    try:
        said = look()
    except OtherwiseError as error:
        return [Finding(what, "problem", str(error), error.command)]
    except (FedbridgeError, OSError) as error:
        return [Finding(what, "problem", text) for text in _told_once(several(error))]
    return [Finding(what, "ok", said)] if isinstance(said, str) else list(said)


def several(error: Exception) -> Sequence[Exception]:
    """Every one of the errors that one may be."""
    return error.errors if isinstance(error, SeveralError) else (error,)


def _told_once(errors: Sequence[Exception]) -> Iterator[str]:
    """What is wrong with a site's file; numbers that one setting reads are told of once."""
    remedies: dict[str, list[str]] = {}
    for error in errors:
        if isinstance(error, NotANumberError) and error.remedy:
            remedies.setdefault(error.remedy, []).append(error.column)
    for error in errors:
        if not isinstance(error, NotANumberError) or not error.remedy:
            yield str(error)
        elif columns := remedies.pop(error.remedy, None):
            others = ", ".join(map(repr, columns[1:]))
            line = OPTION.sub(r'\1 = "\2"', error.remedy)
            also = f" It is the same in {others}." if others else ""
            yield f"{error}{also} As a line of site.toml: {line}."


OPTION = re.compile(r"(\w+)='([^']*)'")


class OtherwiseError(DeploymentError):
    """A site says otherwise than the plan.

    Attributes:
        command: what it types to say the same.
    """

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command


def check(folder: Path, *, counts: bool = True) -> Report:
    """Check a deployment's folder, or the folder of one site, whichever this is.

    With ``counts`` a site's description says how many rows it has.
    """
    if Deployment(folder).plan_file.exists():
        return Report(tuple(_coordinator(Deployment(folder))))
    if SiteFolder(folder).settings_file.exists():
        return Report(tuple(_site(SiteFolder(folder), counts=counts)))
    raise DeploymentError(
        f"Expected a deployment's folder (with plan.json) or a site's (with site.toml), but "
        f"{str(folder)!r} has neither: make one with `fedbridge deploy init`."
    )


def _site(site: SiteFolder, *, counts: bool) -> Iterator[Finding]:
    settings = site.settings()
    yield Finding("settings", "ok", f"site {settings.site}, {settings.role}")
    yield Finding("versions", "ok", ", ".join(f"{k} {v}" for k, v in own_versions().items()))
    yield from looked_at("modes", lambda: _modes(site.folder))
    yield from looked_at("certificates", lambda: _authority(site.ca))
    yield from looked_at("node key", lambda: _key_pair(site))
    yield from looked_at("device", lambda: _device(settings))
    yield from looked_at("privacy", lambda: _protected(settings))
    yield from looked_at("floors", lambda: _floors(settings))
    yield from looked_at("approval", lambda: _approved(site, settings))
    yield from looked_at("log", lambda: _logged(site))
    yield from looked_at("data", lambda: _described(site, settings, counts=counts))
    yield from looked_at("link", lambda: _link_of(settings, site))


def _authority(path: Path) -> list[Finding]:
    return [_valid_until(pki.check_authority(path), "the link's authority")]


def _valid_until(certificate: Certificate, whose: str) -> Finding:
    """A certificate that is valid, with a word in time before it no longer is."""
    soon = pki.ends_soon(certificate)
    advice = "; renew it in time, as the runbook says" if soon else ""
    said = f"{whose}: valid until {certificate.not_valid_after_utc:%Y-%m-%d}{advice}"
    return Finding("certificates", "warning" if soon else "ok", said)


def _key_pair(site: SiteFolder) -> str:
    pki.check_node_key(site.key)
    return "private, and fits the public one"


def _device(settings: SiteSettings) -> str:
    check_device(settings.device)
    return f"computes on {settings.device}"


def _protected(settings: SiteSettings) -> list[Finding]:
    """Whether this site's updates are protected, and what ten rounds would cost it."""
    privacy = settings.privacy
    if isinstance(privacy, RecordPrivacy):
        said = (
            f"no single row can be told beyond an epsilon of {privacy.epsilon:g} (delta "
            f"{privacy.delta:g}), for {privacy.rounds} rounds in all; clip {privacy.clip:g}"
        )
        composed_epsilon({Look(1.0, 1.0): 1}, privacy.delta)  # a run will need the accountant
        return [Finding("privacy", "ok", said)]
    if privacy is None or privacy.noise == 0:
        said = (
            "updates leave as they are, and can tell of single rows; record-epsilon and "
            "record-rounds protect them, see docs/deploy.md"
            if privacy is None
            else "updates are clipped but get no noise, which protects nothing"
        )
        return [Finding("privacy", "warning", f"no privacy: {said}")]
    spent = epsilon(privacy, rounds=10)
    stop = "" if settings.budget is None else f"; it stops at {settings.budget:g}"
    said = f"clip {privacy.clip:g}, noise {privacy.noise:g}: epsilon {spent:.3g} in 10 rounds{stop}"
    return [Finding("privacy", "ok", said)]


def _floors(settings: SiteSettings) -> list[Finding]:
    """What no run can ask of this site; less than usual is worth a word."""
    weaker = settings.floors.weaker()
    if weaker:
        said = f"weaker than the defaults, see docs/deploy.md: {', '.join(weaker)}"
        return [Finding("floors", "warning", said)]
    said = ", ".join(f"{name} {value}" for name, value in settings.floors.config().items())
    return [Finding("floors", "ok", said)]


def _approved(site: SiteFolder, settings: SiteSettings) -> list[Finding]:
    """Which runs this site takes part in, and whether the app that lies here is one of them."""
    approved = settings.approve
    said = (
        "any run that the link hands to this site; `approve` in site.toml allows some only"
        if approved is None
        else f"only runs of {len(approved)} approved apps and settings"
    )
    found = [Finding("approval", "note" if approved is None else "ok", said)]
    if site.app.exists():
        known = hash_of_app(site.app)
        state: FindingState = "ok" if approved is not None and known in approved else "note"
        other = "" if state == "ok" else ", which is not in `approve`"
        line = "" if state == "ok" else f'approve = ["{known}"]'
        found.append(Finding("approval", state, f"the app here has the hash {known}{other}", line))
    return found


def _logged(site: SiteFolder) -> str:
    """Whether the log of what this site answered is whole."""
    lines = SiteLog(site.log).verify()
    return f"{len(lines)} messages" + (f", last hash {lines[-1]['hash']}" if lines else " so far")


def _reached(address: str, ca: Path) -> str:
    reach_link(address, ca)
    return f"answers at {address}, with the right certificate"


def _link_of(settings: SiteSettings, site: SiteFolder) -> list[Finding]:
    """A site may check before the coordinator has started the link; another link is a problem."""
    try:
        found = [Finding("link", "ok", _reached(settings.link, site.ca))]
        if is_registered(site, settings) is False:
            said = f"this site's key is not registered yet: send {site.key.public.name}"
            found.append(Finding("link", "note", f"{said} to the coordinator"))
        return found
    except LinkAwayError as error:
        said = (
            f"no answer yet at {settings.link} ({error.__cause__}): it need not run before this "
            f"site's node does, and the coordinator starts it"
        )
        return [Finding("link", "note", said)]


def _described(site: SiteFolder, settings: SiteSettings, *, counts: bool) -> list[Finding]:
    if not settings.data:
        raise DataError(
            "Expected the path of this site's data, but `data` in site.toml is empty: fill it in."
        )
    path = Path(settings.data)
    if not path.is_absolute():
        raise DataError(
            f"Expected the whole path of this site's data, but `data` is {settings.data!r}: "
            f"write it from the root on, since the node may run elsewhere."
        )
    try:
        description, cautions = describe_site(settings, path, counts=counts)
    except FedbridgeError as error:
        proposed = [] if settings.arrays is not None else list(_proposed_here(settings, path))
        if not proposed:
            raise
        return [
            *(Finding("data", "problem", text) for text in _told_once(several(error))),
            *proposed,
        ]
    rehearse(settings, path, description)
    write_atomically(site.description, description.to_json())
    columns, arrays = description.summary.columns, description.arrays
    what = f"{len(columns)} columns to learn from" if arrays is None else _samples(arrays)
    said = f"{what}; read {site.description.name}, then send it"
    empty = [repr(name) for name, column in columns.items() if column.kind is None]
    notes = cautions
    if empty:
        notes.append(f"no values in {', '.join(empty)}: not to be used if others have categories")
    return [
        Finding("data", "ok", f"{path.name}: {said} to the coordinator"),
        *(Finding("data", "note", text) for text in notes),
    ]


def _samples(arrays: ArraySummary) -> str:
    """What images or arrays are like, in words."""
    kind = "images" if arrays.pixels else "samples"
    names = arrays.class_names
    predicted = "numbers to predict" if names is None else f"{len(names)} classes"
    return f"{kind} of shape {arrays.shape}, {predicted}"


def _proposed_here(settings: SiteSettings, csv: Path) -> Iterator[Finding]:
    """What this file may call the agreed columns that it seems to lack, if it can be read."""
    with suppress(FedbridgeError):
        table = settings.curation.apply(settings.curation.read(csv))
        if len(table.names) == 1:
            return  # then something else is between its cells
        needed = (*settings.reading.needed, *settings.reading.impute)
        yield from _proposals(propose_names(settings.site, table.names, needed), "in this file")


def _proposals(proposed: Sequence[Proposal], where: str = "") -> Iterator[Finding]:
    """A finding per site, with lines for its settings; nothing is done unasked."""
    for site in dict.fromkeys(proposal.site for proposal in proposed):
        own = [proposal for proposal in proposed if proposal.site == site]
        at = where or f"at {site!r}"
        said = (
            f"{at} {', '.join(proposal.said for proposal in own)}: if that is so, the lines below "
            f"say it in the site.toml of {site}; nothing is done unasked"
        )
        lines = "\n".join(proposal.line for proposal in own)
        yield Finding("data" if where else f"{site}: site.toml", "note", said, lines)


def rehearse(settings: SiteSettings, path: Path, description: Description) -> None:
    """Read the target's rows as a run will, as far as that is known without the other sites.

    A source that can be described can be read, unless others have categories where it has nothing.
    """
    if settings.role == "source":
        return
    agreed = description.arrays or _own_schema(settings, description.summary)
    every, split = replace(settings.split, n_target=None), settings.split
    rows_of = reader(agreed, path, settings.curation)
    read = partial(rows_of, settings.site, "target", settings.seed)
    whole, site = read(split=every), read(split=split)
    rows = len(whole.train) + (0 if whole.test is None else len(whole.test))
    settings.floors.check_split(len(site.train), rows)


def _own_schema(settings: SiteSettings, summary: TableSummary) -> Schema:
    """What the sites may agree on, as far as the target's own table tells."""
    reading = settings.reading
    none = [name for name, column in summary.columns.items() if column.kind is None]
    empty = [name for name in none if name not in reading.impute]
    if empty:
        raise EmptyColumnError(
            f"Expected values in every column at the target, but {', '.join(map(repr, empty))} "
            f"has none, and other sites' rows are not here to fill it: leave it out everywhere "
            f"(`fedbridge deploy change` at the coordinator, with --columns), or let it be missing "
            f"(there, with --impute)."
        )
    here = tuple(name for name in summary.columns if name not in none)
    known = tuple(name for name in reading.impute if name in here)
    reading = replace(reading, columns=here, impute=known)
    schema, _ = agree({settings.site: summary.of(here)}, reading)
    return schema


def _coordinator(deployment: Deployment) -> Iterator[Finding]:
    plan = deployment.plan()
    sources = ", ".join(plan.sources)
    yield Finding("plan", "ok", f"sources {sources}; target {plan.target}; {plan.address}")
    yield Finding("versions", "ok", ", ".join(f"{k} {v}" for k, v in own_versions().items()))
    yield from looked_at("modes", lambda: _modes(deployment.folder))
    yield from looked_at("certificates", lambda: _certificates(deployment, plan))
    described: dict[str, Description] = {}
    for name, why in plan.left.items():
        yield Finding(f"{name}: left", "note", f"has left for good: {why}")
    for name in plan.present:
        yield from looked_at(f"{name}: key", partial(_public_key, deployment.site(name)))
        yield from looked_at(f"{name}: data", partial(_told, deployment, name, described))
    yield from looked_at("agreement", lambda: _agreement(deployment, plan, described))
    if deployment.schema.exists():
        yield from looked_at("app", lambda: f"for `approve` at the sites: {_hash(deployment)}")
    reached = looked_at("link", lambda: _reached(plan.address, deployment.certificates.ca))
    yield from reached
    if all(finding.state == "ok" for finding in reached):
        yield from looked_at("registration", lambda: _registered(deployment, plan))


def _hash(deployment: Deployment) -> str:
    return hash_of_app(deployment.app)


def _certificates(deployment: Deployment, plan: DeploymentPlan) -> list[Finding]:
    files = deployment.certificates
    pki.check_certificates(deployment.coordinator, plan.host)
    found = [
        _valid_until(pki.read_certificate(files.server), f"the link at {plan.host}"),
        *_authority(files.ca),
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


def _modes(folder: Path) -> str:
    """Others must not be able to change anything here: settings, keys, programs, data."""
    loose = [str(p.relative_to(folder.parent)) for p in (folder, *folder.rglob("*")) if _loose(p)]
    if loose:
        more = f" and {len(loose) - 3} more" if len(loose) > 3 else ""
        raise DeploymentError(
            f"Expected that nobody else can write here, but others can write to "
            f"{', '.join(sorted(loose)[:3])}{more}: run chmod -R go-w {folder}"
        )
    return "nobody else can write here"


def _loose(path: Path) -> bool:
    """Whether others could write to this, which may be gone by now."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return os.name == "posix" and not stat.S_ISLNK(mode) and bool(mode & others)


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


def _agreement(
    deployment: Deployment, plan: DeploymentPlan, described: dict[str, Description]
) -> list[Finding]:
    """With every site's word, the schema; it goes into the app that all nodes receive."""
    silent = [name for name in plan.present if name not in described]
    if silent:
        raise DataError(
            f"Expected a description of every site before they can agree, but those of "
            f"{', '.join(silent)} are missing or not in order."
        )
    for name in plan.left:  # who still has a part in what was agreed on
        with suppress(FedbridgeError):
            _told(deployment, name, described)
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
        found += _proposals(proposed)
        found += _way_out(deployment, plan, sites, proposed)
    else:
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
    _settle(deployment, plan, to_json({ARRAYS: agreed.record()}, indent=2) + "\n")
    found = [Finding("agreement", "ok", f"{_samples(agreed)}; written into the app")]
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
