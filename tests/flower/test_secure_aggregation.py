"""Why there is no secure aggregation: Flower has none for the API that fedbridge speaks.

When one of these fails, Flower has got it, and docs/deploy.md and methods that need only the sum of
the sources' updates should be looked at again.
"""

import flwr.clientapp.mod as mods
import flwr.serverapp as serverapp
import flwr.serverapp.strategy as strategies
import pytest
from flower.pretend import identify
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.compat.common.recorddict_compat import recorddict_to_fitres
from flwr.server.workflow import SecAggPlusWorkflow


@pytest.mark.parametrize("package", [mods, serverapp, strategies])
def test_the_message_api_has_none(package):
    assert not [name for name in dir(package) if "sec" in name.lower()]


def test_the_legacy_client_reads_replies_of_the_legacy_api_only():
    reply = RecordDict(
        {
            "arrays": ArrayRecord(),
            "metrics": MetricRecord({"num-examples": 3}),
            "site": ConfigRecord(),
        }
    )
    with pytest.raises(KeyError):
        recorddict_to_fitres(reply, keep_input=True)


def test_the_legacy_server_takes_a_legacy_context_only():
    identify()
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(3, 2)(None, context)
