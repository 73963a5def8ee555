"""The coordinator as a Flower ``ServerApp`` that is configured in TOML alone; apps as files."""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import tomli_w
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedbridge._version import __version__
from fedbridge.base.errors import OptionError
from fedbridge.flower.options import NETWORK, ConfigValue, config_key
from fedbridge.flower.strategy import FedBridgeStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.tables.preprocessing import Preprocessing

OWN = (
    *("out", "min_sites", "secure", "keys", "members", "seed", "name", "positive", "norm_ratio"),
    *NETWORK,
)
"""Options of the strategy that the run configuration may hold."""


def server_app(
    model: Callable[[], nn.Module] | None = None,
    preprocessing: Callable[[], Preprocessing | ImagePreprocessing | None] | None = None,
) -> ServerApp:
    """The coordinator.

    Args:
        model: makes the initial model; by default the run configuration names one (``model``).
        preprocessing: how new rows are to be treated by whoever has the coordinator's model.

    The run configuration holds ``target``, ``sites`` (the sources, in order, with commas),
    ``method``, ``rounds``, what is in ``OWN``, and ``options``: options of the run as JSON text.
    Empty text stands for what is not said.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Run all rounds."""
        _speak()
        config = {k: v for k, v in context.run_config.items() if v != ""}
        strategy = strategy_of(config)
        strategy.preprocessing = None if preprocessing is None else preprocessing()
        initial = None if model is None else ArrayRecord(model().state_dict())
        strategy.start(grid, initial, num_rounds=int(config.get("rounds", 50)))

    return app


def _speak() -> None:
    """Let the rounds be seen in the coordinator's output, which Flower passes on."""
    log = logging.getLogger("fedbridge")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def strategy_of(config: Mapping[str, Any]) -> FedBridgeStrategy:
    """The strategy that a run configuration describes."""
    if "target" not in config:
        raise OptionError("Expected `target` in the run configuration: which site adapts?")
    own = {name: config[config_key(name)] for name in OWN if config_key(name) in config}
    options = _json_object(config, "options")
    if "model" in config:
        options["model"] = config["model"]
    return FedBridgeStrategy(
        str(config.get("method", "auto")),
        target=str(config["target"]),
        sites=_names(config.get("sites")),
        about=_json_object(config, "about"),
        **{**options, **own},
    )


def _names(given: object) -> list[str] | None:
    """Names with commas between them, or, where a name holds one, as a JSON list."""
    if given is None:
        return None
    text = str(given)
    if text.startswith("["):
        return [str(name) for name in json.loads(text)]
    return [name.strip() for name in text.split(",")]


def _json_object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    try:
        found = json.loads(str(config.get(key, "{}")))
    except ValueError as error:
        raise OptionError(
            f"Expected `{key}` in the run configuration to be JSON, but got {error}."
        ) from error
    if not isinstance(found, dict):
        raise OptionError(f"Expected `{key}` in the run configuration to be a JSON object.")
    return found


MODULE = "fedbridge_app"
FAB_FORMAT = 1
"""Of Flower's bundles; it asks for a licence in a file, and for the versions below."""
FLOWER = ">=1.41,<1.43"
LICENSE = f"""\
This app was written by fedbridge {__version__}, and its code is licensed as fedbridge itself is:
SPDX-License-Identifier: Apache-2.0
https://www.apache.org/licenses/LICENSE-2.0
"""
CLIENT_APP = '''\
"""What runs at every site."""

from fedbridge.engines.flower import client_app

app = client_app()
'''
SERVER_APP = '''\
"""What runs at the coordinator: the rounds, as the run configuration says."""

from fedbridge.engines.flower import server_app

app = server_app()
'''


def app_files(
    config: Mapping[str, ConfigValue],
    *,
    description: str = "A federation",
    client: str = CLIENT_APP,
    server: str = SERVER_APP,
) -> dict[str, str]:
    """The files of an app by their paths; a run can set anew only what ``config`` holds."""
    pyproject: dict[str, Any] = {
        "project": {
            "name": "fedbridge-app",
            "version": "1.0.0",
            "description": description,
            "license": {"file": "LICENSE"},
            "dependencies": [f"fedbridge[flower]=={__version__}", f"flwr{FLOWER}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedbridge",
                    "fab-format-version": FAB_FORMAT,
                    "flwr-version-target": version("flwr"),
                    "components": {
                        "serverapp": f"{MODULE}.server_app:app",
                        "clientapp": f"{MODULE}.client_app:app",
                    },
                    "config": dict(config),
                }
            }
        },
    }
    return {
        "pyproject.toml": tomli_w.dumps(pyproject),
        "LICENSE": LICENSE,
        f"{MODULE}/__init__.py": f'"""{description}."""\n',
        f"{MODULE}/client_app.py": client,
        f"{MODULE}/server_app.py": server,
    }
