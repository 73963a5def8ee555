"""What a department brings: the rows of its own CSV, read by the schema that all agreed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.data.split import OWN_SPLIT
from fedbridge.data.tables.load import load_csv_site
from fedbridge.data.tables.schema import Schema

if TYPE_CHECKING:
    from flwr.app import Context

    from fedbridge.data.site_package import LocalSite

SCHEMA = Path(__file__).with_name("schema.json")


def load_department(context: Context) -> LocalSite:
    """This node's department, and no other's.

    A real node says in its configuration which department it is and where its file lies. In a
    simulation nodes have numbers instead, and the run's configuration says where the files lie.
    """
    node, run = context.node_config, context.run_config
    if "site" in node:
        name, csv = str(node["site"]), Path(str(node["data"]))
    else:
        names = [*str(run["sites"]).split(","), str(run["target"])]
        name = names[int(node["partition-id"])]
        csv = Path(str(run["data"])) / f"{name}.csv"
    return load_csv_site(
        csv,
        Schema.from_json(SCHEMA.read_text(encoding="utf-8")),
        name,
        "target" if name == run["target"] else "source",
        int(run["seed"]),
        replace(OWN_SPLIT, n_target=int(run["n-target"])),
    )
