"""Flower's private modules are used in one file, and a test says which of them has moved."""

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import fedbridge
from fedbridge.flower import internals

CHECKED = "1.41.0"
PRIVATE = {
    "flwr.cli.build": {"build_fab_from_disk"},
    "flwr.common.constant": {"ErrorCode"},
    "flwr.common.serde": {"fab_to_proto", "user_config_to_proto"},
    "flwr.proto.control_pb2": {
        "ListNodesRequest",
        "ListRunsRequest",
        "RegisterNodeRequest",
        "StartRunRequest",
        "StreamLogsRequest",
    },
    "flwr.proto.federation_config_pb2": {"SimulationConfig"},
    "flwr.proto.node_pb2": {"NodeInfo"},
    "flwr.proto.runtime_pb2": {"AcquireTaskRequest"},
    "flwr.supercore.constant": {"TaskType"},
    "flwr.supercore.control": {"ControlHttpClient"},
    "flwr.supercore.fab": {"Fab"},
    "flwr.supercore.interceptors": {"RuntimeVersionHttpInterceptor"},
    "flwr.supercore.logger": {"mirror_output_to_queue"},
    "flwr.supercore.runtime": {"RuntimeHttpClient"},
    "flwr.superlink.runtime": {"run_serverapp"},
    "flwr.supernode.cli": {"flwr_clientapp"},
    "flwr.supernode.runtime.run_clientapp": {"run_clientapp"},
}
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
SOURCES = sorted(Path(fedbridge.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in PRIVATE for name in sorted(PRIVATE[module])]
)
def test_flower_still_has_it_where_it_was(module, name):
    moved = f"Flower {version('flwr')} has no {module}.{name}, as Flower {CHECKED} had"
    try:
        found = import_module(module)
    except ImportError as error:
        pytest.fail(f"{moved}: {error}")
    assert hasattr(found, name), moved


def imports_of_flower(path):
    """What a file imports of Flower: names by module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from (pair for pair in found if pair[0].partition(".")[0] == "flwr")


def is_public(module):
    return any(module == one or module.startswith(f"{one}.") for one in PUBLIC)


def test_the_list_above_is_what_the_one_file_imports():
    used: dict[str, set[str]] = {}
    for module, name in imports_of_flower(Path(internals.__file__)):
        used.setdefault(module, set()).add(name)
    assert used == PRIVATE


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if "flwr" in p.read_text()], ids=lambda p: p.name
)
def test_no_other_file_imports_a_private_module(path):
    if path != Path(internals.__file__):
        assert [m for m, _ in imports_of_flower(path) if not is_public(m)] == []
