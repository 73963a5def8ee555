"""TensorBoard: an event file in the run's own folder."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge.base.files import file_name
from fedbridge.workflows.tracking.tracker import FINAL, Tracker, hyper_parameters, title_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.workflows.tracking.tracker import Values

NAME = "tensorboard"


class TensorBoard(Tracker):
    """Tells TensorBoard, which finds it below any folder that it is started with.

    Args:
        folder: where runs get a folder each; by default ``tensorboard`` in the run's own folder,
            or in ``runs`` for a run that is not kept.
    """

    name, title = NAME, "TensorBoard"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self.folder = None if folder is None else Path(folder)
        self._writer: Any = None
        self._stop: Any = None

    def load(self) -> None:
        """TensorBoard, and torch's writer for it."""
        import torch.utils.tensorboard  # noqa: F401

    def open(
        self, config: Mapping[str, Any], out: Path | None, known: str | None
    ) -> tuple[str, bool]:
        """A new event file; a record may have several. It is known by where it lies."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        before = None if known is None or out is None else out / known  # also if it is absolute
        there = before is not None and before.is_dir()
        folder = before if before is not None and there else self._place(config, out)
        self._writer = SummaryWriter(str(folder))
        self.where = f"tensorboard --logdir {folder}"
        of_run, start, self._stop = hparams(
            hyper_parameters(config), {f"{FINAL}{name}": 0.0 for name in ("accuracy", "loss")}
        )
        if not there:
            self._writer.file_writer.add_summary(of_run)
            self._writer.file_writer.add_summary(start)
        within = out is not None and folder.parent == out
        return folder.name if within else str(folder.absolute()), there

    def _place(self, config: Mapping[str, Any], out: Path | None) -> Path:
        if self.folder is None and out is not None:
            return out / NAME
        within = self.folder or Path("runs") / NAME
        name = file_name(title_of(config))
        places = (within / (name if k == 1 else f"{name}-{k}") for k in count(1))
        return next(place for place in places if not place.exists())

    def log(self, round: int, values: Values) -> None:
        """A scalar each, on disk."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def finish(self, round: int, values: Values) -> None:
        """Scalars that the table of hyper-parameters shows."""
        self.log(round, values)
        self._writer.file_writer.add_summary(self._stop)

    def close(self, *, whole: bool) -> None:
        """Write the last of it."""
        self._writer.close()
