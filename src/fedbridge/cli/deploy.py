"""``fedbridge deploy``: a federation of real sites, from its folder to its run."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import FedbridgeError
from fedbridge.cli import shared
from fedbridge.cli.advise import counts, tell_advice, tell_matrix

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

    from fedbridge.data.site_arrays import ArrayReading
    from fedbridge.deploy.findings import FindingState, Report
    from fedbridge.deploy.folders import Deployment, DeploymentPlan, SiteFolder
    from fedbridge.report.tables import Table as LeavingTable

NOT_IN_ORDER = 2
WRITABLE_TO_OTHERS = 0o022
DEFAULT_FOLDER = Path("deployment")
OF_DATA = ("n_target", "test_fraction")
OF_TABLES = ("label_column", "columns", "categorical", "kind", "impute")
OF_SITE = ("role", *OF_TABLES, "seed", "image_size", "grayscale")
"""What a site agrees to, besides."""
DEVICE = "device"
OF_PLAN = ("sites", "target", "method", "model", "rounds", "positive", "join", "leave")
"""What is the coordinator's alone to say."""
STYLES: dict[FindingState, str] = {
    "ok": "green",
    "note": "yellow",
    "warning": "bold yellow",
    "problem": "bold red",
}


def add(commands: shared.Commands) -> None:
    """The commands and their arguments."""
    own = shared.add_family(commands, "deploy")
    _add_init(own)
    _add_change(own)
    whole, one = "a deployment's folder", "a site's folder"
    either = "a deployment's folder, or a site's"
    parser = _add(own, "check", check_command, either)
    parser.add_argument("--no-counts", action="store_true", help="describe without numbers of rows")
    for parser in (
        _add(own, "link", link_command, whole),
        _add(own, "register", register_command, whole),
        _add(own, "run", run_command, whole),
        _add(own, "node", node_command, one),
    ):
        parser.add_argument(
            "--print", action="store_true", help="show the Flower command and do nothing"
        )
    _add_advise(own, either)
    parser = _add(own, "renew", renew_command, whole)
    parser.add_argument("--days", type=float, default=365, help="valid for (default: 365)")
    parser.add_argument("--authority", action="store_true", help="also a new authority")
    _add(own, "key", key_command, one)
    parser = shared.add_command(own, "deploy log", partial(_with_flower, log_command))
    parser.add_argument("action", choices=("verify", "show"), help="check the chain, or read it")
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), metavar="DIR", help=one)
    parser.add_argument("--last", metavar="HASH", help="that somebody wrote down: it must be there")


def _add(own: shared.Commands, name: str, command: shared.Command, folder: str) -> shared.Parser:
    """A command that works on a folder."""
    parser = shared.add_command(own, f"deploy {name}", partial(_with_flower, command))
    parser.add_argument("folder", type=Path, metavar="DIR", help=folder)
    return parser


def _add_advise(own: shared.Commands, folder: str) -> None:
    parser = _add(own, "advise", advise_command, folder)
    parser.add_argument(
        "--matrix", action="store_true", help="every site the target in turn: who gains from whom"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what leaves each site, and do nothing"
    )
    parser.add_argument("--resume", action="store_true", help="keep what is measured already")
    parser.add_argument(
        "--after", type=shared.natural, default=8, help="rounds of auto (default: 8)"
    )
    parser.add_argument(
        "--labels", type=shared.natural, metavar="N", help="labelled rows of a target, if fewer"
    )
    parser.add_argument(
        "--samples", type=counts, metavar="N,N,...", help="labelled samples to look ahead to"
    )
    parser.add_argument(
        "--out", type=shared.place, metavar="FILE", help="JSON to write; with --matrix a folder"
    )


def _with_flower(command: shared.Command, args: Namespace) -> int:
    """Do a command, but not without the package that deployments run on.

    What it writes, and what the programs write that it starts, only its user can write to.
    """
    if find_spec("flwr") is None:
        raise FedbridgeError(
            "Expected Flower, on which deployments run, but it is not installed: "
            'run pip install "fedbridge[flower]".'
        )
    before = os.umask(0)
    os.umask(before | WRITABLE_TO_OTHERS)
    try:
        return command(args)
    finally:
        os.umask(before)


def _add_init(own: shared.Commands) -> None:
    command = partial(_with_flower, init_command)
    parser = shared.add_command(own, "deploy init", command, open_options=True)
    parser.add_argument("--sites", required=True, help="the sources, separated by commas")
    parser.add_argument("--target", required=True, help="the site that adapts")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="(default: deployment)"
    )
    parser.add_argument("--host", help="by which sites reach the coordinator (default: localhost)")
    parser.add_argument("--port", type=shared.natural, help="(default: 8000)")
    _add_plan(parser)
    parser.add_argument("--days", type=float, default=365, help="certificates are valid for")


def _add_change(own: shared.Commands) -> None:
    command = partial(_with_flower, change_command)
    parser = shared.add_command(own, "deploy change", command, open_options=True)
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a deployment's folder, or a site's"
    )
    parser.add_argument("--sites", help="the sources, all of them, separated by commas")
    parser.add_argument("--target", help="the site that adapts")
    parser.add_argument("--role", choices=("source", "target"), help="of a site, in its folder")
    parser.add_argument("--join", help="new sources, while the run goes on")
    parser.add_argument("--leave", help="sources that take no part any more; the run goes on")
    parser.add_argument("--why", help="why they leave, for the history", default="no reason given")
    _add_plan(parser)


def _add_plan(parser: shared.Parser) -> None:
    """What a plan says of data and run; what is not given is left as it is, or usual."""
    parser.add_argument("--label-column", help="to predict (default: label)")
    parser.add_argument("--columns", help="to learn from, separated by commas (default: all)")
    parser.add_argument("--categorical", help="columns of numbers that are codes")
    parser.add_argument("--kind", help="classification or regression (default: by the labels)")
    parser.add_argument("--impute", help="columns that a site may lack, separated by commas")
    parser.add_argument("--positive", help="the label, of two, that measures are of")
    parser.add_argument(
        "--form", choices=("table", "images", "npz"), help="what each site has (default: table)"
    )
    parser.add_argument("--image-size", type=shared.natural, help="of all images (default: 32)")
    parser.add_argument(
        "--grayscale", action="store_const", const=True, help="images have one channel"
    )
    parser.add_argument("--method", help="see `fedbridge methods` (default: auto)")
    parser.add_argument("--model", help="the network (default: mlp; of images cnn)")
    parser.add_argument("--rounds", type=shared.natural, help="rounds (default: 20)")
    parser.add_argument("--seed", type=shared.natural, help="of split and run (default: 0)")
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")


def init_command(args: Namespace) -> int:
    """Write the folder and say what comes next."""
    from fedbridge.deploy.folders import Deployment, DeploymentPlan
    from fedbridge.deploy.installing import own_wheel
    from fedbridge.deploy.writing import write_deployment

    folder = args.out.absolute()
    made = Deployment(folder)
    given = {"host": args.host, "port": args.port}
    host = {name: value for name, value in given.items() if value is not None}
    plan = DeploymentPlan(**_planned(args, None), **host)
    _check_plan(plan, made)
    written = write_deployment(plan, folder, args.days)
    said = "written" if written else "is there already, with the same settings; left alone"
    content = {"folder": str(folder), "written": written, "runbook": str(made.runbook)}
    lines = [f"{folder}: {said}", f"what to do: {made.runbook}"]
    if written:
        wheel = own_wheel()
        content |= {"wheel": wheel.name, "sha256": wheel.sha256}
        lines.append(f"each site installs {wheel.name}, SHA-256 {wheel.sha256}")
    return _tell(args, content, lines)


def change_command(args: Namespace) -> int:
    """Change a deployment's plan, or what a site has agreed to; say what follows."""
    from fedbridge.deploy.changing import change_deployment, join_and_leave
    from fedbridge.deploy.folders import Deployment, SiteFolder

    folder = args.folder.absolute()
    if SiteFolder(folder).settings_file.exists():
        return _change_site(args, SiteFolder(folder))
    deployment = Deployment(folder)
    before = deployment.plan()
    if args.role is not None:
        raise FedbridgeError(
            "Expected --role in a site's folder; which site is the target of a deployment is said "
            "with --target."
        )
    join, leave = (_names(text) for text in (args.join, args.leave))
    plan = replace(before, **_planned(args, before))
    if (join or leave) and plan != before:
        raise FedbridgeError(
            "Expected --join and --leave by themselves, since the run goes on with all else as it "
            "is: make other changes before or after."
        )
    plan = join_and_leave(plan, join, leave, args.why)
    _check_plan(plan, deployment)
    made = change_deployment(deployment, plan, goes_on=bool(join or leave))
    if not made.changed:
        return _tell(args, {"changed": []}, ["nothing to change: the plan says so already"])
    lines = [f"plan.json: changed {', '.join(made.changed)}", *made.done]
    if made.sites:
        lines.append("each of these sites types, in its folder:")
        lines += [f"  {name}: {command}" for name, command in made.sites.items()]
    lines += ["then, here:", *(f"  {line}" for line in made.next)]
    return _tell(args, asdict(made), lines)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _change_site(args: Namespace, site: SiteFolder) -> int:
    from fedbridge.base.options import check_known
    from fedbridge.deploy.changing import change_site

    given = {name: value for name in OF_SITE if (value := getattr(args, name, None)) is not None}
    for name in OF_PLAN:
        if getattr(args, name, None) is not None:
            raise FedbridgeError(
                f"Expected what a site agrees to, but got --{name}, which the coordinator changes "
                f"in the deployment's folder."
            )
    check_known(args.options, OF_DATA, "a site's settings")
    values = {name.replace("_", "-"): value for name, value in {**given, **args.options}.items()}
    other = change_site(site, values)
    said = f"{site.settings_file}: " + (f"changed {', '.join(other)}" if other else "as it was")
    lines = [said, "next: fedbridge deploy check, then send description.json to the coordinator"]
    return _tell(args, {"changed": other}, lines)


def _check_plan(plan: DeploymentPlan, deployment: Deployment) -> None:
    """Refuse what a run would refuse."""
    from fedbridge.deploy.writing import run_config
    from fedbridge.flower.server import strategy_of
    from fedbridge.models import check_built_in

    check_built_in(plan.model)
    config = run_config(plan, deployment.sites)
    strategy_of({name: value for name, value in config.items() if value != ""})


def check_command(args: Namespace) -> int:
    """Show what is in order and what is not."""
    from fedbridge.deploy.checking import check

    report = check(args.folder.absolute(), counts=not args.no_counts)
    if args.json:
        shared.write_json(report.to_json())
    else:
        from fedbridge.cli.shared import results

        results().print(findings_table(report))
        for finding in report.findings:
            if finding.command:
                shared.say("", f"{finding.what}:", finding.command)
    return 0 if report.ok else NOT_IN_ORDER


def renew_command(args: Namespace) -> int:
    """Replace the server's certificate, and the authority when it is time."""
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.writing import renew

    deployment = Deployment(args.folder.absolute())
    authority = renew(deployment, args.days, authority=args.authority)
    files = deployment.certificates
    said = [f"{files.server}: new, for {args.days:g} days; restart the link"]
    if authority:
        said = [
            f"{files.ca}: a new authority beside the old one; the same file is in every sites/NAME",
            f"{files.server}: new, by the old authority; restart the link",
            "next: give every site its ca.crt; when all nodes run with it, renew once more",
        ]
    content = {"certificate": str(files.server), "authority": authority, "days": args.days}
    return _tell(args, content, said)


def key_command(args: Namespace) -> int:
    """Make a key pair in a site's folder."""
    from fedbridge.deploy.folders import SiteFolder
    from fedbridge.flower.pki import make_node_key

    site = SiteFolder(args.folder.absolute())
    name = site.settings().site
    key = make_node_key(site.folder, site.key.private.name)
    content = {"site": name, "private": str(key.private), "public": str(key.public)}
    said = [f"{key.private}: stays here", f"{key.public}: send it to the coordinator"]
    return _tell(args, content, said)


def log_command(args: Namespace) -> int:
    """Check the log of a site, or show it."""
    from fedbridge.deploy.folders import SiteFolder
    from fedbridge.deploy.site_log import SiteLog

    site = SiteFolder(args.folder.absolute())
    lines = SiteLog(site.log).verify(args.last)
    last = lines[-1]["hash"] if lines else None
    spent = [line["epsilon"] for line in lines if line["epsilon"] is not None]
    content = {
        "site": site.settings().site,
        "lines": len(lines),
        "bytes": sum(line["bytes"] for line in lines),
        "epsilon": spent[-1] if spent else None,
        "last": last,
    }
    if args.action == "show":
        return _tell(args, {**content, "log": lines}, map(_in_one_line, lines))
    told = f", epsilon {spent[-1]:.3g} so far" if spent else ""
    whole = f"{site.log}: an unbroken chain of {len(lines)} messages, {content['bytes']} bytes sent"
    advice = "write it down, or send it to somebody: with it (--last) missing lines show later"
    return _tell(args, content, [f"{whole}{told}", f"last hash: {last or 'none'}", advice])


def _in_one_line(line: Mapping[str, Any]) -> str:
    """What a person wants to see of a message."""
    spent = "" if line["epsilon"] is None else f", epsilon {line['epsilon']:.3g}"
    what = line["kind"] if line["round"] is None else f"{line['kind']} (round {line['round']})"
    return (
        f"{line['time']} run {line['run']} {what}: {line['answer']}, {line['bytes']} bytes{spent}"
    )


def _planned(args: Namespace, before: DeploymentPlan | None) -> dict[str, Any]:
    """The fields of a plan that the command line gives, beside those that were there before."""
    from fedbridge.base.errors import UnknownOptionError
    from fedbridge.base.options import check_known
    from fedbridge.cli.shared import sort_options
    from fedbridge.data.tables.schema import Reading, column_names
    from fedbridge.federation.settings import NAMES, RECORD, Settings
    from fedbridge.flower.options import NETWORK, PRIVACY
    from fedbridge.methods import options_of

    args.workers = None
    method = args.method or ("auto" if before is None else before.method)
    of_run, others = sort_options(args, (method,))
    network = {name: others.pop(name) for name in NETWORK if name in others}
    known = "the run, the method, the network or the target's data"
    for option in (*PRIVACY, *RECORD, DEVICE):
        if option in (*others, *of_run):
            raise UnknownOptionError(
                f"Expected options of {known}, but got {option!r}: each site writes it into its "
                f"own site.toml."
            )
    check_known(others, (*OF_DATA, *NAMES, *NETWORK), known)
    Settings(**{name: value for name, value in of_run.items() if name in NAMES})
    names = ("target", "method", "model", "rounds", "seed", "positive")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.sites is not None:
        given["sources"] = tuple(name.strip() for name in args.sites.split(","))
    arrays = _arrays(args, None if before is None else before.arrays)
    if before is None and arrays is not None and arrays.is_images:
        given.setdefault("model", "cnn")
    reading = Reading() if before is None else before.reading
    columns = reading.columns if args.columns is None else column_names(args.columns) or None
    codes = reading.categorical if args.categorical is None else column_names(args.categorical)
    label = args.label_column or reading.label_column
    kind = reading.kind if args.kind is None else args.kind or None
    impute = reading.impute if args.impute is None else column_names(args.impute)
    old = {} if before is None else {"options": before.options, "network": before.network}
    kept = {k: v for k, v in old.get("options", {}).items() if k in (*NAMES, *options_of(method))}
    return {
        **given,
        **others,
        "reading": Reading(label, columns, codes, kind, impute),
        "arrays": arrays,
        "options": {**kept, **of_run},
        "network": {**old.get("network", {}), **network},
    }


def _arrays(args: Namespace, before: ArrayReading | None) -> ArrayReading | None:
    """How images or arrays are read, as the command line says; None for tables."""
    from fedbridge.base.errors import OptionError
    from fedbridge.data.site_arrays import ArrayReading

    form: Any = args.form or ("table" if before is None else before.form)
    given = {"image_size": args.image_size, "grayscale": args.grayscale}
    given = {name: value for name, value in given.items() if value is not None}
    foreign = [] if form == "images" else [*given]
    if form != "table":
        foreign += [name for name in OF_TABLES if getattr(args, name) is not None]
    if foreign:
        raise OptionError(
            f"Expected options of data of the form {form}, but got "
            f"--{foreign[0].replace('_', '-')}: leave it out, or say another --form."
        )
    if form == "table":
        return None
    if before is not None and before.form == form:
        return replace(before, **given)
    return ArrayReading(form, **given)


def link_command(args: Namespace) -> int:
    """Run the link in the foreground."""
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.running import run_until_stopped, shown, start_link_command

    deployment = Deployment(args.folder.absolute())
    command = start_link_command(deployment, deployment.plan())
    if args.print:
        return shared.say(shown([command], deployment))
    log = deployment.coordinator / "link.log"
    return run_until_stopped(command, deployment, log, _to_stderr)


def node_command(args: Namespace) -> int:
    """Run a site's node in the foreground."""
    from fedbridge.deploy.folders import SiteFolder
    from fedbridge.deploy.running import run_node, shown, start_node_command, write_node_files

    site = SiteFolder(args.folder.absolute())
    settings = site.settings()
    if args.print:
        write_node_files(site)
        return shared.say(shown([start_node_command(site, settings)], site))
    return run_node(site, settings, _to_stderr)


def register_command(args: Namespace) -> int:
    """Register what is not registered yet."""
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.running import register_command, register_sites, shown

    deployment = Deployment(args.folder.absolute())
    plan = deployment.plan()
    if args.print:
        commands = [register_command(deployment, site) for site in plan.sites]
        return shared.say(shown(commands, deployment))
    new = register_sites(deployment, plan)
    said = [f"{site}: {'registered' if site in new else 'known'}" for site in plan.sites]
    return _tell(args, {"registered": new, "sites": list(plan.sites)}, said)


def run_command(args: Namespace) -> int:
    """Start a run and follow it to its end."""
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.running import follow_run, run_command, shown, start_run
    from fedbridge.runs.folder import RunFolder

    deployment = Deployment(args.folder.absolute())
    if args.print:
        return shared.say(shown([run_command(deployment)], deployment))
    plan = deployment.plan()
    run_id = start_run(deployment, plan, _to_stderr)
    state = follow_run(deployment, plan, run_id, _to_stderr)
    model = deployment.site(plan.target).run
    content = {"run_id": run_id, "status": state.status, "folder": str(deployment.run)}
    lines = [f"run {run_id}: {state.status}", f"folder: {deployment.run}"]
    if state.status == "completed":
        absent = (RunFolder(deployment.run).summary() or {}).get("absent", {})
        content |= {"model": str(model), "absent": absent}
        lines += [f"took no part: {name} ({reason})" for name, reason in absent.items()]
        lines += [
            f"the model is at {plan.target}, in the folder `run` of its site's folder; there:",
            f"  fedbridge predict run {plan.new_data} --out predictions.csv",
        ]
        return _tell(args, content, lines)
    _tell(args, content, lines)
    fate = state.details or ("no reason given" if state.finished else "it goes on without us")
    return shared.complain(f"run {run_id} is {state.status}: {fate}", shared.FAILED)


def advise_command(args: Namespace) -> int:
    """Measure over the link, for the target or for every site in turn; or say what would leave."""
    from fedbridge.deploy.advising import (
        AdviceOptions,
        advise_all,
        advise_over_link,
        approvals,
        leaving,
        leaving_here,
        planned_turns,
    )
    from fedbridge.deploy.folders import Deployment, SiteFolder

    folder = args.folder.absolute()
    options = AdviceOptions(args.after, args.labels, args.samples)
    if SiteFolder(folder).settings_file.exists():
        if not args.dry_run:
            raise FedbridgeError(
                "Expected the coordinator to ask for advice, in the deployment's folder; in a "
                "site's, --dry-run says what would leave it."
            )
        site = SiteFolder(folder)
        hashes = approvals(site.app, options=options)[1:] if site.app.exists() else []
        return _tell_leaving(args, leaving_here(site.settings(), options.after), hashes)
    deployment = Deployment(folder)
    plan = deployment.plan()
    turns = planned_turns(deployment, plan, matrix=args.matrix)
    if args.dry_run:
        asked = [turn for turn in turns if not turn.why]
        agreed = deployment.schema.exists()
        hashes = approvals(deployment.app, asked, options)[1:] if agreed else []
        return _tell_leaving(args, leaving(turns, options.after), hashes)
    if args.matrix:
        matrix = advise_all(deployment, plan, options, _to_stderr, resume=args.resume)
        return tell_matrix(args, matrix)
    advice = advise_over_link(deployment, plan, turns[0], options, _to_stderr, resume=args.resume)
    return tell_advice(args, advice)


def _tell_leaving(args: Namespace, table: LeavingTable, hashes: Sequence[str]) -> int:
    """What leaves sites, as a table or as one JSON object, and by which hashes it is approved."""
    from rich.text import Text

    from fedbridge.report.tables import to_terminal

    if args.json:
        names = ("site", "role", "sends", "record", "seen_by")
        lines = [dict(zip(names, row, strict=True)) for row in table.rows]
        content = {"leaves": lines, "notes": list(table.notes), "approve": list(hashes)}
        shared.write_json(content)
        return 0
    shared.results().print(to_terminal(table, titled=True), *map(Text, table.notes), sep="\n")
    if hashes:
        shared.say("", "Sites that approve runs one by one add to `approve` in their site.toml:")
        shared.say(*(f'"{known}",' for known in hashes))
    return 0


def _tell(args: Namespace, content: Mapping[str, Any], lines: Iterable[str]) -> int:
    """The result, as one JSON object or a line each."""
    if args.json:
        shared.write_json(content)
        return 0
    return shared.say(*lines)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def findings_table(report: Report) -> Table:
    """A row per finding, and in the last line whether all is in order."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=not report.ok)
    table.add_column("what", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for finding in report.findings:
        state = Text(finding.state, STYLES[finding.state])
        table.add_row(Text(finding.what), state, Text(finding.said))
    problems = sum(finding.state == "problem" for finding in report.findings)
    table.caption = "all in order" if report.ok else f"{problems} to be put in order"
    return table
