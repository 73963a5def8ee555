"""All that fedbridge uses of Flower's private modules, which may move with any version.

Checked with Flower 1.41.0. What is public (``flwr.app``, ``flwr.clientapp``,
``flwr.serverapp``) is imported where it is used; nothing else of Flower is imported elsewhere.
"""

from __future__ import annotations

from importlib.metadata import version

from fedbridge.base.errors import FedbridgeError

try:
    from flwr.cli.build import build_fab_from_disk as build_fab_from_disk
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.common.serde import fab_to_proto as fab_to_proto
    from flwr.common.serde import user_config_to_proto as user_config_to_proto
    from flwr.proto.control_pb2 import ListNodesRequest as ListNodesRequest
    from flwr.proto.control_pb2 import ListRunsRequest as ListRunsRequest
    from flwr.proto.control_pb2 import RegisterNodeRequest as RegisterNodeRequest
    from flwr.proto.control_pb2 import StartRunRequest as StartRunRequest
    from flwr.proto.control_pb2 import StreamLogsRequest as StreamLogsRequest
    from flwr.proto.federation_config_pb2 import SimulationConfig as SimulationConfig
    from flwr.proto.node_pb2 import NodeInfo as NodeInfo
    from flwr.proto.runtime_pb2 import AcquireTaskRequest as AcquireTaskRequest
    from flwr.supercore.constant import TaskType as TaskType
    from flwr.supercore.control import ControlHttpClient as ControlHttpClient
    from flwr.supercore.fab import Fab as Fab
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor as RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.logger import mirror_output_to_queue as mirror_output_to_queue
    from flwr.supercore.runtime import RuntimeHttpClient as RuntimeHttpClient
    from flwr.superlink.runtime import run_serverapp as run_serverapp
    from flwr.supernode.cli import flwr_clientapp as flwr_clientapp
    from flwr.supernode.runtime.run_clientapp import run_clientapp as run_clientapp
except ImportError as error:
    if error.name == "flwr":
        raise  # it is not there at all
    raise FedbridgeError(
        f"Expected Flower's modules as in 1.41.0, but Flower {version('flwr')} has moved "
        f"one ({error}): pip install 'fedbridge[flower]'."
    ) from error
