"""What a finished run gets besides its result: outputs on the test rows, model card, page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.federation.loop import Extras
from fedbridge.report import write_report
from fedbridge.report.model_card import write_model_card
from fedbridge.runs.record import Tested, write_tested

if TYPE_CHECKING:
    from fedbridge.federation.loop import FinishedRun


class ResultPages(Extras):
    """For a run whose test rows are elsewhere, and stay there."""

    def before_result(self, run: FinishedRun) -> None:
        """The model card."""
        write_model_card(run.folder, run.summary)

    def after_result(self, run: FinishedRun) -> None:
        """The page."""
        write_report(run.folder)


class AllResultFiles(ResultPages):
    """For a run whose test rows are here."""

    def before_result(self, run: FinishedRun) -> None:
        """Keep what the model says of the test rows, for everything but one number."""
        test = run.task.test
        outputs = run.federation.predict(run.state, test)
        if bool(outputs.isfinite().all()):
            write_tested(run.folder, Tested(outputs.reshape(len(test), -1), test.y))
        super().before_result(run)
