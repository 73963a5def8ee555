"""A site's own check: its settings, what it allows, and its data as a run will read them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.base.errors import DataError, EmptyColumnError, FedbridgeError
from fedbridge.base.files import write_atomically
from fedbridge.data.tables.proposals import propose_names
from fedbridge.data.tables.schema import Schema, TableSummary, agree
from fedbridge.deploy import folder_checks
from fedbridge.deploy.advising import approvals
from fedbridge.deploy.approval import approving
from fedbridge.deploy.description import Description, describe_site
from fedbridge.deploy.findings import Finding, looked_at, proposals, several, told_once
from fedbridge.deploy.loading import reader
from fedbridge.deploy.reaching import LinkAwayError
from fedbridge.deploy.running import is_registered
from fedbridge.deploy.site_log import SiteLog
from fedbridge.federation.settings import check_device
from fedbridge.flower import pki
from fedbridge.flower.privacy import epsilon
from fedbridge.training.accountant import Look, composed_epsilon
from fedbridge.training.record_privacy import RecordPrivacy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedbridge.deploy.folders import SiteFolder, SiteSettings


def check_site(site: SiteFolder, *, counts: bool) -> Iterator[Finding]:
    """All that would keep a site from taking part; its description is written if nothing does."""
    settings = site.settings()
    yield Finding("settings", "ok", f"site {settings.site}, {settings.role}")
    yield Finding("versions", "ok", folder_checks.versions())
    yield from looked_at("modes", lambda: folder_checks.modes(site.folder))
    yield from looked_at("certificates", lambda: folder_checks.authority(site.ca))
    yield from looked_at("node key", lambda: _key_pair(site))
    yield from looked_at("device", lambda: _device(settings))
    yield from looked_at("privacy", lambda: _protected(settings))
    yield from looked_at("floors", lambda: _floors(settings))
    yield from looked_at("approval", lambda: _approved(site, settings))
    yield from looked_at("log", lambda: _logged(site))
    yield from looked_at("data", lambda: _described(site, settings, counts=counts))
    yield from looked_at("link", lambda: _link_of(settings, site))


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
        run, advice = approvals(site.app)
        for what, known in (("the run of the app here", run), ("its usual advice", advice)):
            fine = approved is not None and known in approved
            other = "" if fine else ", which is not in `approve`"
            said = f"{what} has the hash {known}{other}"
            found.append(Finding("approval", "ok" if fine else "note", said))
        if not {run, advice} <= {*(approved or ())}:
            said = "once somebody has looked at the app, the line below lets both take place here"
            line = approving([*(approved or ()), run, advice])
            found.append(Finding("approval", "note", said, line))
    return found


def _logged(site: SiteFolder) -> str:
    """Whether the log of what this site answered is whole."""
    lines = SiteLog(site.log).verify()
    return f"{len(lines)} messages" + (f", last hash {lines[-1]['hash']}" if lines else " so far")


def _link_of(settings: SiteSettings, site: SiteFolder) -> list[Finding]:
    """A site may check before the coordinator has started the link; another link is a problem."""
    try:
        found = [Finding("link", "ok", folder_checks.reached(settings.link, site.ca))]
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
            *(Finding("data", "problem", text) for text in told_once(several(error))),
            *proposed,
        ]
    rehearse(settings, path, description)
    write_atomically(site.description, description.to_json())
    columns, arrays = description.summary.columns, description.arrays
    what = f"{len(columns)} columns to learn from" if arrays is None else arrays.in_words()
    said = f"{what}; read {site.description.name}, then send it"
    empty = [repr(name) for name, column in columns.items() if column.kind is None]
    notes = cautions
    if empty:
        notes.append(f"no values in {', '.join(empty)}: not to be used if others have categories")
    return [
        Finding("data", "ok", f"{path.name}: {said} to the coordinator"),
        *(Finding("data", "note", text) for text in notes),
    ]


def _proposed_here(settings: SiteSettings, csv: Path) -> Iterator[Finding]:
    """What this file may call the agreed columns that it seems to lack, if it can be read."""
    with suppress(FedbridgeError):
        table = settings.curation.apply(settings.curation.read(csv))
        if len(table.names) == 1:
            return  # then something else is between its cells
        needed = (*settings.reading.needed, *settings.reading.impute)
        yield from proposals(propose_names(settings.site, table.names, needed), "in this file")


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
