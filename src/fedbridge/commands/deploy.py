"""``fedbridge deploy``: a federation of real sites, from its folder to its run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.commands import deploy_start
from fedbridge.commands.deploy_parts import add_folder, need_flower, say
from fedbridge.commands.parts import add_command, natural, write_json

if TYPE_CHECKING:
    from argparse import Namespace

    from fedbridge.commands.parts import Commands
    from fedbridge.deploy.plan import Plan

NOT_IN_ORDER = 2
DEFAULT_FOLDER = Path("deployment")
OF_DATA = ("n_target", "test_fraction")

HELP = """\
Run a federation over a network with Flower: one coordinator, and a node at every site.

`init` writes a folder with all that is needed and a RUNBOOK.md that says what to do with it.

examples:
  fedbridge deploy init --sites north,south --target east --host link.example.org
  fedbridge deploy check deployment
"""
INIT_HELP = """\
Write the folder of a deployment: the Flower app, certificates, and a folder for every site.

Options of the run and of the method (--lr, --batch-size, --beta ...) are given as in
`fedbridge run`, and so are --n-target and --test-fraction of the target's data.

examples:
  fedbridge deploy init --sites north,south --target east --host link.example.org
  fedbridge deploy init --sites A,B,C --target D --label-column disease --columns age,sex --lr 0.05
"""
CHECK_HELP = """\
Check a deployment's folder at the coordinator, or a site's folder at the site.

At a site: settings, certificate, key, data file and link; describes the data in description.json.
At the coordinator: certificates, keys, versions, link, registered and online nodes; and, when all
descriptions are there, whether the sites agree, which it writes into the app as schema.json.
The exit status is 0 when all is in order and 2 when something is not.

examples:
  fedbridge deploy check deployment
  fedbridge deploy check sites/north --json
"""
RENEW_HELP = """\
Replace the certificate of the link; sites need nothing new. Restart the link afterwards.

examples:
  fedbridge deploy renew deployment
  fedbridge deploy renew deployment --days 90
"""
KEY_HELP = """\
Make a pair of keys at a site, so that nobody else ever has the private one.

examples:
  fedbridge deploy key sites/north
"""


def add(commands: Commands) -> None:
    """The commands and their arguments."""
    family = commands.add_parser("deploy", help="a federation of real sites", description=HELP)
    own = family.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_init(own)
    parser = add_command(own, "check", check_command, "is everything in order?", CHECK_HELP)
    add_folder(parser, "a deployment's folder, or a site's")
    parser.add_argument("--no-counts", action="store_true", help="describe without numbers of rows")
    deploy_start.add(own)
    parser = add_command(own, "renew", renew_command, "a new certificate for the link", RENEW_HELP)
    add_folder(parser, "a deployment's folder")
    parser.add_argument("--days", type=float, default=365, help="valid for (default: 365)")
    parser = add_command(own, "key", key_command, "make a site's key at the site", KEY_HELP)
    add_folder(parser, "a site's folder")


def _add_init(own: Commands) -> None:
    parser = add_command(
        own, "init", init_command, "write a deployment's folder", INIT_HELP, open_options=True
    )
    parser.add_argument("--sites", required=True, help="the sources, separated by commas")
    parser.add_argument("--target", required=True, help="the site that adapts")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="(default: deployment)"
    )
    parser.add_argument("--host", default="localhost", help="by which sites reach the coordinator")
    parser.add_argument("--port", type=natural, default=8000, help="(default: 8000)")
    parser.add_argument("--label-column", default="label", help="to predict (default: label)")
    parser.add_argument("--columns", help="to learn from, separated by commas (default: all)")
    parser.add_argument("--categorical", default="", help="columns of numbers that are codes")
    parser.add_argument("--kind", help="classification or regression (default: by the labels)")
    parser.add_argument("--method", default="auto", help="see `fedbridge methods` (default: auto)")
    parser.add_argument("--model", default="mlp", help="the network (default: mlp)")
    parser.add_argument("--rounds", type=natural, default=20, help="rounds (default: 20)")
    parser.add_argument("--seed", type=natural, default=0, help="of split and run (default: 0)")
    parser.add_argument("--days", type=float, default=365, help="certificates are valid for")
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")


def init_command(args: Namespace) -> int:
    """Write the folder and say what comes next."""
    need_flower()
    from fedbridge.deploy.app_files import run_config
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.writing import write_deployment
    from fedbridge.engines.flower.server import strategy_of
    from fedbridge.models import check_built_in

    plan, folder = _plan(args), args.out.absolute()
    check_built_in(plan.model)
    strategy_of({name: value for name, value in run_config(plan).items() if value != ""})
    written = write_deployment(plan, folder, args.days)
    runbook = Deployment(folder).runbook
    if args.json:
        write_json({"folder": str(folder), "written": written, "runbook": str(runbook)})
    else:
        said = "written" if written else "is there already, with the same settings; left alone"
        say([f"{folder}: {said}", f"what to do: {runbook}"])
    return 0


def check_command(args: Namespace) -> int:
    """Show what is in order and what is not."""
    need_flower()
    from fedbridge.deploy.checking import check

    report = check(args.folder.absolute(), counts=not args.no_counts)
    if args.json:
        write_json(report.to_json())
    else:
        from fedbridge.commands.deploy_view import findings_table
        from fedbridge.show import results

        results().print(findings_table(report))
    return 0 if report.ok else NOT_IN_ORDER


def renew_command(args: Namespace) -> int:
    """Replace the server's certificate."""
    need_flower()
    from fedbridge.deploy.folders import Deployment
    from fedbridge.deploy.writing import link_hosts
    from fedbridge.engines.flower.pki import renew_server_certificate

    deployment = Deployment(args.folder.absolute())
    files = renew_server_certificate(
        deployment.coordinator, link_hosts(deployment.plan()), args.days
    )
    if args.json:
        write_json({"certificate": str(files.server), "days": args.days})
    else:
        say([f"{files.server}: new, for {args.days:g} days; restart the link"])
    return 0


def key_command(args: Namespace) -> int:
    """Make a key pair in a site's folder."""
    need_flower()
    from fedbridge.deploy.folders import SiteFolder
    from fedbridge.engines.flower.pki import make_node_key

    site = SiteFolder(args.folder.absolute())
    name = site.settings().site
    key = make_node_key(site.folder, site.key.private.name)
    if args.json:
        write_json({"site": name, "private": str(key.private), "public": str(key.public)})
    else:
        say([f"{key.private}: stays here", f"{key.public}: send it to the coordinator"])
    return 0


def _plan(args: Namespace) -> Plan:
    from fedbridge.commands.parts import sort_options
    from fedbridge.data.summary import Reading, column_names
    from fedbridge.deploy.plan import Plan
    from fedbridge.engines.flower.options import NETWORK, PRIVACY
    from fedbridge.errors import UnknownOptionError, nearest
    from fedbridge.settings import NAMES, Settings

    args.workers = None
    of_run, others = sort_options(args, (args.method,))
    for option in others:
        if option in (*NETWORK, *PRIVACY):
            where = "site.toml of each site" if option in PRIVACY else "app/pyproject.toml"
            raise UnknownOptionError(
                f"Expected options of the run, the method or the target's data, but got "
                f"{option!r}: write it into {where} that this command makes."
            )
        if option not in OF_DATA:
            raise UnknownOptionError(
                f"Expected options of the run, the method or the target's data, but there is no "
                f"option {option!r}.{nearest(option, [*OF_DATA, *NAMES])}"
            )
    Settings(**{name: value for name, value in of_run.items() if name in NAMES})
    columns = None if args.columns is None else column_names(args.columns)
    return Plan(
        tuple(name.strip() for name in args.sites.split(",")),
        args.target,
        args.host,
        args.port,
        Reading(args.label_column, columns, column_names(args.categorical), args.kind),
        args.method,
        args.rounds,
        args.seed,
        args.model,
        **others,
        options=of_run,
    )
