"""The federation on Flower: real sites over a real network.

Needs the extra ``flower``. ``client_app`` and ``server_app`` are ready to run;
``FedBridgeStrategy`` and the ``reply_to_...`` helpers plug into a Flower app of one's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import OptionError

if TYPE_CHECKING:
    from fedbridge.flower.client import (
        client_app,
        reply_to_decide,
        reply_to_evaluate,
        reply_to_hello,
        reply_to_train,
    )
    from fedbridge.flower.localhost import run_here
    from fedbridge.flower.server import server_app
    from fedbridge.flower.strategy import FedBridgeStrategy

__all__ = [
    "FedBridgeStrategy",
    "client_app",
    "reply_to_decide",
    "reply_to_evaluate",
    "reply_to_hello",
    "reply_to_train",
    "run_here",
    "server_app",
]

_WHERE = {
    "FedBridgeStrategy": "strategy",
    "client_app": "client",
    "reply_to_decide": "client",
    "reply_to_evaluate": "client",
    "reply_to_hello": "client",
    "reply_to_train": "client",
    "run_here": "localhost",
    "server_app": "server",
}


def __getattr__(name: str) -> Any:
    """Load a part when it is asked for: a site does not need what a coordinator needs."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "flwr":
            raise
        raise OptionError(
            "Expected Flower to be installed, but it is not: pip install 'fedbridge[flower]'."
        ) from error
