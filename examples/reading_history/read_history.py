"""Read what a run has written: its rounds as a table, and three questions to it."""

import sys
from pathlib import Path

import pandas as pd

import fedbridge as fb


def by_source(run: fb.LoadedRun, measure: str) -> pd.DataFrame:
    """A measure of every source over the rounds: a row per round, a column per source."""
    history = run.history.dropna(subset=[measure])
    values = pd.DataFrame(history[measure].tolist(), columns=run.summary["sources"])
    return values.set_index(history["round"])


def main(folder: Path) -> None:
    """Whom did it trust, when was it good enough, and what did it cost?"""
    run = fb.load_run(folder)
    history = run.history.set_index("round")
    print(f"{run.summary['method']} for {run.summary['target']}, {len(history)} rounds")

    trust = by_source(run, "beta").mean().sort_values(ascending=False)
    print("\nmean trust in every source\n" + trust.to_string(float_format="%.2f"))

    final = run.summary["accuracy"]
    early = history.index[history["accuracy"] >= 0.95 * final]
    print(f"\n95% of the final accuracy ({final:.1f}%) from round {early[0]} on")

    sent = history[["bytes_up", "bytes_down"]].sum().sum() / 1e6
    seconds = history[["seconds_train", "seconds_aggregate", "seconds_eval"]].sum().sum()
    print(f"{sent:.1f} MB would have crossed a network, {seconds:.1f} seconds")

    for number, failures in history["failures"].items():
        for who, why in failures.items():
            print(f"round {number} without {who}: {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
