"""The Flower app of a deployment: its settings, and how its sites read their own files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fedbridge.engines.flower import server
from fedbridge.engines.flower.options import NetworkOptions

if TYPE_CHECKING:
    from fedbridge.deploy.plan import Plan
    from fedbridge.engines.flower.options import ConfigValue

CLIENT_APP = '''\
"""What runs at every site: it reads the site's own CSV by the schema that the sites agreed on."""

from pathlib import Path

from fedbridge.deploy.loading import csv_sites
from fedbridge.engines.flower import client_app

app = client_app(load=csv_sites(Path(__file__).with_name("schema.json")))
'''


def app_files(plan: Plan) -> dict[str, str]:
    """The files of the app by their paths."""
    readme = (
        f"# A federation for {plan.target}\n\nWritten by `fedbridge deploy init`. "
        f"What to do with it is in the RUNBOOK.md beside this folder.\n"
    )
    description = f"A federation of {len(plan.sources)} sources for {plan.target}"
    files = server.app_files(run_config(plan), description=description, client=CLIENT_APP)
    return {**files, "README.md": readme}


def run_config(plan: Plan) -> dict[str, ConfigValue]:
    """The settings of the run, as the app's modules read them; empty text says nothing.

    A run can set anew only what is here, so all that there is stands here.
    """
    return {
        "method": plan.method,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "target": plan.target,
        "sites": ",".join(plan.sources),
        "model": plan.model,
        "n-target": plan.n_target or 0,
        "test-fraction": plan.test_fraction,
        "options": json.dumps(dict(plan.options)),
        "out": "",
        "secure": True,
        **NetworkOptions().config(),
    }
