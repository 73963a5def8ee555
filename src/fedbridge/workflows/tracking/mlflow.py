"""MLflow: a run of an experiment in whatever store MLflow is set up with."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from fedbridge.workflows.tracking.tracker import Tracker, hyper_parameters, title_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlflow import MlflowClient

    from fedbridge.workflows.tracking.tracker import Values

LOCK = Path(tempfile.gettempdir()) / "fedbridge-mlflow.lock"
"""Who makes a store or an experiment holds it: runs of a comparison begin at the same time."""
LONGEST = 500
"""Characters of a parameter that every store takes."""


class MLflow(Tracker):
    """Tells MLflow, by its client alone: no active run of yours is touched.

    Args:
        uri: the store or server; by default what MLflow is set up with (``MLFLOW_TRACKING_URI``),
            or else its own default, a database in the current folder.
        experiment: which experiment gets the run.
    """

    name, title = "mlflow", "MLflow"

    def __init__(self, uri: str | None = None, experiment: str = "fedbridge") -> None:
        super().__init__()
        self.uri, self.experiment = uri, experiment
        self._client: MlflowClient | None = None
        self._run = ""

    def load(self) -> None:
        """The part of MLflow that tracks."""
        import mlflow  # noqa: F401

    def open(
        self, config: Mapping[str, Any], out: Path | None, known: str | None
    ) -> tuple[str, bool]:
        """The run of before, if the store still has it, or a new one."""
        import mlflow
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        uri = self.uri or mlflow.get_tracking_uri()
        self.where = f"MLflow, experiment {self.experiment!r} in {uri}"
        with FileLock(LOCK):
            self._client = client = mlflow.MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(self.experiment)
            place = experiment.experiment_id if experiment else None
            place = place or client.create_experiment(self.experiment)
        if known is not None:
            try:
                self._run = client.get_run(known).info.run_id
                client.update_run(self._run, status="RUNNING")
                return self._run, True
            except MlflowException:
                pass  # removed from the store, or another store
        self._run = client.create_run(place, run_name=title_of(config)).info.run_id
        told = {name: str(value)[:LONGEST] for name, value in hyper_parameters(config).items()}
        client.log_batch(self._run, params=[Param(*one) for one in told.items()])
        return self._run, False

    def log(self, round: int, values: Values) -> None:
        """All of them in one request, which has been answered."""
        from mlflow.entities import Metric

        assert self._client is not None
        now = time.time_ns() // 10**6
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, round: int, values: Values) -> None:
        """Measures like any other."""
        self.log(round, values)

    def close(self, *, whole: bool) -> None:
        """The run has come to an end."""
        assert self._client is not None
        self._client.set_terminated(self._run, "FINISHED" if whole else "KILLED")
