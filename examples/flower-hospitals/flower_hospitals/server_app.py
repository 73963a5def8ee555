"""flower-hospitals: what runs at the coordinator."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbridge.engines.flower import FedBridgeStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play all rounds; the settings are in pyproject.toml."""
    run = context.run_config
    strategy = FedBridgeStrategy(
        rule=str(run["rule"]),
        target=str(run["target"]),
        sites=str(run["sites"]).split(","),
        seed=int(run["seed"]),
        out=str(run["out"]) or None,
        secure=bool(run["secure"]),
        keys=str(run["keys"]) or None,
        model=str(run["model"]),
        lr=float(run["lr"]),
        batch_size=int(run["batch-size"]),
        batch_size_target=int(run["batch-size-target"]),
    )
    strategy.start(grid, num_rounds=int(run["rounds"]))
    if strategy.result is not None and strategy.result.accuracy is not None:
        print(f"accuracy at {strategy.target}: {strategy.result.accuracy:.1f}%")
