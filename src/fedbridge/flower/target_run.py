"""The target's run, kept at the target: its model, ready for ``fedbridge predict``.

How the target's rows are prepared never leaves it, nor does a model that it decides on itself. So
it has a run's folder of its own, of all that it knows: the measures of every round, the model, the
preprocessing and, in a deployment, a model card and a page. What others brought is not known here.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedbridge._version import __version__
from fedbridge.base.files import PRIVATE, file_name
from fedbridge.base.values import OBJECT_MODEL
from fedbridge.evaluation.metrics import NOT_MEASURED
from fedbridge.runs.folder import FORMAT, JOINED, RunFolder, fingerprint, founders
from fedbridge.runs.record import positive_measures, read_tested, summarise
from fedbridge.training.blend import module_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from fedbridge.data.site_package import LocalSite
    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.federation.federation import Federation
    from fedbridge.flower.messages import RunSpec
    from fedbridge.training.state import Model

RUN = "run"
"""Folder of the run that was last at work, in a site's folder."""

NOT_KNOWN = ("n_sources", "bytes_up", "bytes_down", "seconds")
"""Entries of a summary that only a coordinator can fill in."""

CHOSEN = {
    "choice": "choice",
    "said": "said",
    "losses": "cv_loss",
    "errors": "cv_error",
    "weights": "weights",
}
"""What the target's decision stands on, and what the history calls it."""


def run_in(home: Path, run: str) -> Path:
    """The folder of a run in a site's folder; one of another run makes room and keeps its files."""
    here, aside = home / RUN, home / f"{RUN}-{file_name(run)}"
    there = RunFolder(here).config()
    if there is not None and there.get("run") != run:
        here.rename(home / f"{RUN}-{file_name(str(there.get('run', 'before')))}")
    if aside.exists() and not here.exists():
        aside.rename(here)
    return here


class TargetRun:
    """Writes the folder of one run at the target; another run's is never touched.

    Args:
        path: the folder.
        site: the target.
        spec: what the coordinator says of the run.
        federation: the federation as the target sees it.
        model: any model of the run, for its shape.
        pages: whether to write a model card and a page as well.
    """

    def __init__(
        self,
        path: Path,
        site: LocalSite,
        spec: RunSpec,
        federation: Federation,
        model: nn.Module,
        *,
        pages: bool,
    ) -> None:
        self.folder = RunFolder(path)
        self.site, self.spec, self.federation = site, spec, federation
        self.model, self.pages = model, pages

    def keep(self, line: dict[str, Any], state: Model | None) -> None:
        """Put down what a round was worth, and its model; None leaves the one that is there."""
        folder, task = self.folder, self.federation.task
        history = [*(old for old in folder.history() if old["round"] < line["round"]), line]
        config = self.config(history)
        folder.check(config, resume=True)
        folder.unseal()
        folder.rewind(history)
        folder.write_config(config)
        if self.site.preprocessing is not None:
            folder.write_preprocessing(self.site.preprocessing.to_json(), config)
        if state is not None:
            folder.write_model(module_of(self.model, state), config)
        told = summarise(
            task,
            history,
            method=self.spec.method,
            seed=self.spec.seed,
            rounds=sum(old["round"] >= 1 for old in history),
            parameters=self.federation.blocks.total,
            seconds=0.0,
        )
        summary = {name: value for name, value in told.items() if name not in NOT_KNOWN}
        if self.pages:
            self._write_pages(state, summary)
        else:
            folder.write_summary(summary)
        folder.seal()
        for file in folder.path.iterdir():
            file.chmod(PRIVATE)

    def _write_pages(self, state: Model | None, summary: dict[str, Any]) -> None:
        """Outputs on the test rows, the summary with what they show, card and page."""
        # Only a target of a deployment draws pages: no other site waits for what that needs.
        from fedbridge.report import keep_outputs, write_model_card, write_report

        path, task = self.folder.path, self.federation.task
        if state is not None:
            keep_outputs(path, self.federation.predict(state, task.test), task.test)
        summary |= positive_measures(read_tested(path), task)
        write_model_card(path, summary)
        self.folder.write_summary(summary)
        write_report(path, unchecked=True)

    def config(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """What the run is, as far as the target knows."""
        site, spec, task = self.site, self.spec, self.federation.task
        return {
            **({JOINED: dict(spec.joined)} if spec.joined else {}),
            "format": FORMAT,
            "version": __version__,
            "task": task.name,
            "target": site.name,
            "sources": list(spec.sources),
            "method": spec.method,
            "seed": spec.seed,
            "rounds": max(0, history[-1]["round"]),
            "run": spec.run,
            "positive": task.positive_name,
            "data_sha256": fingerprint(founders(task, spec.joined)),
            "settings": dict(spec.settings),
            "options": dict(spec.options),
            "model": {
                "name": spec.model or f"{OBJECT_MODEL}{type(self.model).__qualname__}",
                "input_shape": list(task.input_shape),
                "outputs": task.outputs,
                "n_classes": site.n_classes,
                "class_names": None if site.class_names is None else list(site.class_names),
            },
        }


def line_of(
    round: int, evaluation: Evaluation, facts: Mapping[str, Any], absent: Sequence[str]
) -> dict[str, Any]:
    """A round as the target's history tells it."""
    return {
        "round": round,
        "phase": "warm-up" if round < 1 else "training",
        **asdict(evaluation.test or NOT_MEASURED),
        **{key: facts[name] for name, key in CHOSEN.items() if name in facts},
        "failures": dict.fromkeys(absent, "missing, as the coordinator says"),
        "notes": [],
        "validation_loss": evaluation.validation,
        "bytes_up": 0,
        "bytes_down": 0,
    }
