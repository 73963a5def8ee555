"""The network's options are said once: signature, apps and documents follow."""

import inspect
import re
from pathlib import Path

import pytest

from fedbridge.federation.settings import NAMES
from fedbridge.flower.options import NETWORK, PRIVACY, NetworkOptions, config_key
from fedbridge.flower.server import OWN, strategy_of
from fedbridge.flower.strategy import FedBridgeStrategy

DOCS = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_strategy_takes_every_option_with_its_default():
    assert FedBridgeStrategy().network == NetworkOptions()
    others = NetworkOptions(timeout=1, wait=2, encoding="int8", norm_bound=3)
    assert FedBridgeStrategy(**vars(others)).network == others
    parameters = inspect.signature(FedBridgeStrategy).parameters
    assert set(OWN) <= {*parameters, *NETWORK, *NAMES}


def test_an_app_that_says_nothing_else_has_the_defaults():
    config = {k: v for k, v in NetworkOptions().config().items() if v != ""}
    strategy = strategy_of({"target": "T", **config})
    assert strategy.network == NetworkOptions()


@pytest.mark.parametrize("name", [*NETWORK, *PRIVACY, "norm_ratio"])
def test_the_documents_name_every_option(name):
    assert re.search(rf"`?\b{config_key(name)}\b", DOCS.read_text(encoding="utf-8"))
