"""Weights & Biases: a run of a project, on its server or offline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedbridge.workflows.tracking.tracker import (
    Tracker,
    TrackerUnavailableError,
    hyper_parameters,
    title_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import wandb

    from fedbridge.workflows.tracking.tracker import Values


class WandB(Tracker):
    """Tells Weights & Biases no more than the others: no code, console, machine or packages.

    Args:
        project: which project gets the run; by default ``WANDB_PROJECT``, or ``fedbridge``.
        mode: ``online`` or ``offline``; by default ``WANDB_MODE``, or online.
        entity: user or team; by default your own.
    """

    name, title = "wandb", "Weights & Biases"

    def __init__(
        self,
        project: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        entity: str | None = None,
    ) -> None:
        super().__init__()
        self.project = project or os.environ.get("WANDB_PROJECT") or "fedbridge"
        self.mode, self.entity = mode, entity
        self._run: wandb.Run | None = None
        self._first = 1
        self._check_login()

    def load(self) -> None:
        """Their library."""
        import wandb  # noqa: F401

    def _check_login(self) -> None:
        """Say now what would be asked, or fail, when the first round is done."""
        import wandb

        settings = wandb.setup().settings
        if (self.mode or settings.mode) == "online" and not wandb.login(prompt=False):
            raise TrackerUnavailableError(
                "Expected to be logged in to Weights & Biases, but this machine is not: run "
                "`wandb login`, or set WANDB_MODE=offline and `wandb sync` later."
            )

    def open(
        self, config: Mapping[str, Any], out: Path | None, known: str | None
    ) -> tuple[str, bool]:
        """A run, or more of it under the same name; files of it lie in the run's folder."""
        import wandb

        self._first = 1 - int(config["settings"]["warmup"])
        within = None if os.environ.get("WANDB_DIR") else out
        self._run = run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            id=known,
            resume="allow",
            reinit="create_new",
            name=title_of(config),
            config=hyper_parameters(config),
            dir=within,
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        run.define_metric("*", step_metric="round")
        files = Path(run.dir).parent
        self.where = f"wandb sync {files}" if run.offline else str(run.url)
        return str(run.id), run.id == known

    def log(self, round: int, values: Values) -> None:
        """One line of its history; the service process that takes it outlives this one.

        Steps go on where they were, also offline, where nobody knows the files of before.
        """
        assert self._run is not None
        self._run.log({"round": round, **values}, step=round - self._first, commit=True)

    def finish(self, round: int, values: Values) -> None:
        """The table of runs shows these."""
        assert self._run is not None
        self._run.summary.update(values)

    def close(self, *, whole: bool) -> None:
        """Wait until everything is where it should be."""
        assert self._run is not None
        self._run.finish(exit_code=0 if whole else 1)
