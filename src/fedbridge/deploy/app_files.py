"""The Flower app of a deployment: its settings, and two modules of a few lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import tomli_w

from fedbridge import __version__
from fedbridge.deploy.folders import APP_MODULE

if TYPE_CHECKING:
    from fedbridge.deploy.plan import Plan

CLIENT_APP = '''\
"""What runs at every site: it reads the site's own CSV by the schema that the sites agreed on."""

from pathlib import Path

from fedbridge.deploy.loading import csv_sites
from fedbridge.engines.flower import client_app

app = client_app(load=csv_sites(Path(__file__).with_name("schema.json")))
'''
SERVER_APP = '''\
"""What runs at the coordinator: the rounds, as the settings in pyproject.toml say."""

from fedbridge.engines.flower import server_app

app = server_app()
'''


def app_files(plan: Plan) -> dict[str, str]:
    """The files of the app by their paths."""
    return {
        "pyproject.toml": tomli_w.dumps(_pyproject(plan)),
        "README.md": (
            f"# A federation for {plan.target}\n\nWritten by `fedbridge deploy init`. "
            f"What to do with it is in the RUNBOOK.md beside this folder.\n"
        ),
        f"{APP_MODULE}/__init__.py": '"""A federation of real sites."""\n',
        f"{APP_MODULE}/client_app.py": CLIENT_APP,
        f"{APP_MODULE}/server_app.py": SERVER_APP,
    }


def run_config(plan: Plan) -> dict[str, str | int | float | bool]:
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
        "timeout": 3600,
        "wait": 300,
        "encoding": "float32",
        "norm-bound": "",
        "norm-ratio": "",
    }


def _pyproject(plan: Plan) -> dict[str, object]:
    return {
        "project": {
            "name": "fedbridge-app",
            "version": "1.0.0",
            "description": f"A federation of {len(plan.sources)} sources for {plan.target}",
            "dependencies": [f"fedbridge[flower]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedbridge",
                    "components": {
                        "serverapp": f"{APP_MODULE}.server_app:app",
                        "clientapp": f"{APP_MODULE}.client_app:app",
                    },
                    "config": run_config(plan),
                }
            }
        },
    }
