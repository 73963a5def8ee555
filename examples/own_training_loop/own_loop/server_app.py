"""own-training-loop: what runs at the coordinator."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedbridge.engines.flower import FedBridgeStrategy
from own_loop.rows import SITES, TARGET, network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; the settings are in pyproject.toml."""
    run = context.run_config
    strategy = FedBridgeStrategy(
        rule=str(run["rule"]),
        target=TARGET,
        sites=SITES[:-1],
        out=str(run["out"]) or None,
        own_training=True,
    )
    strategy.start(
        grid,
        ArrayRecord(network().state_dict()),
        num_rounds=int(run["rounds"]),
        train_config=ConfigRecord({"lr": float(run["lr"])}),
    )
    if strategy.result is not None and strategy.result.accuracy is not None:
        print(f"accuracy at {TARGET}: {strategy.result.accuracy:.1f}%")
