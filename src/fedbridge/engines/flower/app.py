"""A Flower app as files: its settings in ``pyproject.toml``, and two modules of a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tomli_w

from fedbridge._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.engines.flower.options import ConfigValue

MODULE = "fedbridge_app"
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
    """The files of an app by their paths.

    Args:
        config: the run configuration; a run can set anew only what is here.
        description: what it is.
        client: source of the module of the sites.
        server: source of the module of the coordinator.
    """
    pyproject: dict[str, Any] = {
        "project": {
            "name": "fedbridge-app",
            "version": "1.0.0",
            "description": description,
            "dependencies": [f"fedbridge[flower]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedbridge",
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
        f"{MODULE}/__init__.py": f'"""{description}."""\n',
        f"{MODULE}/client_app.py": client,
        f"{MODULE}/server_app.py": server,
    }
