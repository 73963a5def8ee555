"""The round loop: run, evaluate, write a line of the history, keep a checkpoint, again.

It knows neither where sites live (that is its engine's business) nor what a finished run looks like
on a page: what is written besides history, checkpoints, model and summary is put on from above
(``Extras``).
"""

from __future__ import annotations

import time
from collections import Counter
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedbridge._version import __version__
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.text import block
from fedbridge.evaluation.metrics import NOT_MEASURED
from fedbridge.federation.federation import Federation
from fedbridge.federation.follow import Audience, Callback, HistoryLine
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import check_needs
from fedbridge.models import build_model
from fedbridge.runs.checkpoint import Checkpoint
from fedbridge.runs.folder import (
    FORMAT,
    JOINED,
    RunFolder,
    RunFolderError,
    fingerprint,
    founders,
    run_id,
)
from fedbridge.runs.lines import PER_SOURCE, rounded
from fedbridge.runs.lock import folder_lock
from fedbridge.runs.record import retold, summarise, told_positive
from fedbridge.training.accountant import Look
from fedbridge.training.blend import module_of
from fedbridge.training.job import INITIALISING, seed_of
from fedbridge.training.state import Blend, Model, Recalled, State, model_of_tensors
from fedbridge.training.trainer import Workbench, seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.tables.preprocessing import Preprocessing
    from fedbridge.data.task import FederatedTask
    from fedbridge.engines import Engine
    from fedbridge.federation.settings import Settings


PAUSE = 1.0
"""Seconds from one checkpoint to the next: a disk may take longer over one than a small round."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run.

    Attributes:
        accuracy: mean of the last 5 rounds in percent; None for regression.
        history: one record per round.
        summary: the run in a few numbers, as in ``summary.json``.
        model: the target's model.
        out: the run's folder, if it was written.
        input_shape: shape of one sample, as the model takes it.
        class_names: names of the classes by the model's outputs; None for regression.
        preprocessing: how new rows become samples; None where they are samples already.
        config: what was run, as in ``config.toml``.
        in_pixels: whether samples are images of bytes, of which the model gets 255ths.
    """

    accuracy: float | None
    history: list[HistoryLine]
    summary: dict[str, Any]
    model: nn.Module
    out: Path | None = None
    input_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    in_pixels: bool = False

    @classmethod
    def of(
        cls,
        task: FederatedTask,
        history: list[HistoryLine],
        summary: dict[str, Any],
        model: nn.Module,
        out: Path | None,
        config: Mapping[str, Any],
    ) -> RunResult:
        """The result of a run on a task, of which it keeps no row."""
        names = None
        if task.n_classes is not None:
            names = task.class_names or tuple(map(str, range(task.n_classes)))
        return cls(
            summary["accuracy"],
            history,
            summary,
            model.eval(),
            out,
            task.input_shape,
            names,
            task.preprocessing,
            config,
            task.in_pixels,
        )

    def __repr__(self) -> str:
        """Five lines."""
        said = str(self.history[-1].get("said", "")) if self.history else ""
        kept = "none, since `out` named none" if self.out is None else str(self.out)
        return block(*run_lines(self.summary, self.model), said or NO_CHOICE, f"folder: {kept}")


NO_CHOICE = "the method makes no choice of its own between training alone and joining"


def run_lines(summary: Mapping[str, Any], model: nn.Module) -> tuple[str, str, str]:
    """What a run was, how good it is and what came out, for people."""
    told = f"{summary['task']}: {summary['target']} by {summary['method']}"
    rounds = f"{summary['rounds']} round{'s' * (summary['rounds'] != 1)}"
    score = summary.get("score")
    good = "not measured" if score is None else f"score {score:.4f} (negative test loss)"
    if summary["accuracy"] is not None:
        low, high = summary["accuracy_interval"]
        good = f"accuracy {summary['accuracy']:.1f}%, 95% interval {low:.1f} to {high:.1f}"
    size = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{told}, seed {summary['seed']}, {rounds}",
        f"{good} ({summary.get('n_test')} test rows)",
        f"model: {type(model).__name__} with {size} parameters",
    )


@dataclass(frozen=True)
class FinishedRun:
    """What those who measure or write something at the end of a run may look at."""

    task: FederatedTask
    federation: Federation
    state: Model

    @cached_property
    def outputs(self) -> Tensor:
        """What the model says of the test rows, where these are here."""
        return self.federation.predict(self.state, self.task.test)


class Extras:
    """What is told of a run besides its history, and written besides its model and summary."""

    def measures(self, run: FinishedRun) -> Mapping[str, Any]:
        """What the summary tells besides."""
        return {}

    def before_result(self, folder: Path, run: FinishedRun, summary: Mapping[str, Any]) -> None:
        """Before model and summary: the summary marks the run as finished."""

    def after_result(self, folder: Path) -> None:
        """When all files of the run are there."""


@dataclass(frozen=True)
class Unevaluated:
    """A round that is over but for its evaluation.

    Attributes:
        model: what is to be evaluated.
        told: its line of the history without that.
        checkpoint: the run as it was after the round.
    """

    model: Model
    told: HistoryLine
    checkpoint: Checkpoint


@dataclass
class Run:
    """One run: everything between its configuration and its result, wherever its sites are.

    Attributes:
        task: the federation's sites, as far as they are known here.
        method: name of the method, and
        kind: its class; ``make`` makes one.
        rounds: rounds after the warm-up.
        seed: of the initial model and of everything random in training.
        settings: options of the run.
        options: options of the method.
        callbacks: called with every round's line of the history; a ``Follower`` hears more.
        engine: who runs the clients; None for processes of this machine.
        initial: the initial model, or only its parameters; None builds the one that is named.
        about: more entries for the run's configuration file.
        extras: what else is written at the end.
        joined: the first round of every source that was not there from the beginning.
    """

    task: FederatedTask
    method: str
    kind: type[Method]
    make: Callable[[Federation, Mapping[str, Any]], Method]
    rounds: int
    seed: int
    settings: Settings
    options: dict[str, Any]
    callbacks: Sequence[Callback] = ()
    engine: Callable[[Workbench], Engine] | None = None
    initial: nn.Module | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    extras: Extras = field(default_factory=Extras)
    joined: Mapping[str, int] = field(default_factory=dict)
    history: list[HistoryLine] = field(default_factory=list)
    best: float = float("inf")
    since_best: int = 0
    best_state: Model | None = None
    claimed: bool = False
    saved: float = float("-inf")
    unsaved: Checkpoint | None = None
    unevaluated: Unevaluated | None = None

    def go(self, folder: RunFolder | None, *, resume: bool, unchecked: bool = False) -> RunResult:
        """Start or resume, run all rounds, write the result; alone in the folder."""
        if folder is None:
            with self._audience:
                return self._go(None, resume=resume)
        folder.refuse_other_files()
        with folder_lock(folder.path), self._audience:
            folder.verify(unchecked=unchecked, missing=True)
            folder.remove_leftovers()
            return self._go(folder, resume=resume)

    def _go(self, folder: RunFolder | None, *, resume: bool) -> RunResult:
        kind = self.kind
        model_name = self.settings.model_name or self.task.model
        with seeded(seed_of(self.seed, 0, 0, INITIALISING), torch.device("cpu")):
            named = self.settings.model or self.task.model
            given = self.initial
            model = build_model(named, self.task) if given is None else deepcopy(given)
            check_needs(self.method, kind.needs, self.task, model, model_name)
            blank = deepcopy(model)
            composed = kind.compose(model, self.task)
        federation = Federation(
            self.task, composed, self.settings, self.seed, kind.needs, self.engine
        )
        method = self.make(federation, self.options)
        first = 1 - self.settings.warmup
        if folder is not None:
            folder.check(self.config(), resume=resume)
            first = self._take_up(folder, method, first)
        begun = time.perf_counter()
        nothing_to_run = first > self.rounds or self._stopped_early()
        if not nothing_to_run:
            self._run_all(first, federation, method, folder)
        result = method.model if self.best_state is None else self.best_state
        delivered = (
            method.deliver(blank, result) if isinstance(result, State) else module_of(blank, result)
        )
        finished = self._finished(folder) if nothing_to_run else None
        federation.begin_round(self.history[-1]["round"])
        run = FinishedRun(self.task, federation, result)
        summary = finished or {}
        if finished is None or told_positive(finished, self.task) != self.config()["positive"]:
            now = self._summarise(run, time.perf_counter() - begun)
            summary = now if finished is None else retold(finished, now)
        if folder is not None and not (summary is finished and folder.is_whole()):
            self._write_result(folder, run, delivered, summary)
        out = None if folder is None else folder.path
        config = self.config()
        self._audience.end(config, self.history, out, summary)
        return RunResult.of(self.task, self.history, summary, delivered, out, config)

    @cached_property
    def _audience(self) -> Audience:
        return Audience(self.callbacks)

    def _summarise(self, run: FinishedRun, seconds: float) -> dict[str, Any]:
        """The summary with what is measured besides; of the class that the configuration names."""
        told = summarise(
            self.task,
            self.history,
            method=self.method,
            seed=self.seed,
            rounds=self.rounds,
            parameters=run.federation.blocks.total,
            seconds=seconds,
        )
        return {**told, "positive": self.config()["positive"], **self.extras.measures(run)}

    def _write_result(
        self, folder: RunFolder, run: FinishedRun, delivered: nn.Module, summary: dict[str, Any]
    ) -> None:
        """All files of a finished run, or those that an earlier end has not come to."""
        folder.unseal()
        if not self.claimed:
            folder.write_task(self.task, self.config())
            folder.write_config(self.config())
        self.extras.before_result(folder.path, run, summary)
        folder.write_result(delivered, summary, self.config())
        self.extras.after_result(folder.path)
        folder.seal()

    def config(self) -> dict[str, Any]:
        """What the run is: with the same code of the model, the same bits come out."""
        known = {
            "format": FORMAT,
            "version": __version__,
            "task": self.task.name,
            "target": self.task.target.name,
            "sources": list(self.task.source_names),
            "positive": self.task.positive_name,
            "loaded_as": self.task.manifest.get("loaded_as"),
            "method": self.method,
            "seed": self.seed,
            "rounds": self.rounds,
            "data_sha256": self._data_sha256,
            "settings": {k: v for k, v in self.settings.to_json().items() if k != "workers"},
            "options": {
                name: value.tolist() if hasattr(value, "tolist") else value  # a tensor, an array
                for name, value in self.options.items()
            },
            "model": {
                "name": self.settings.model_name or self.task.model,
                "input_shape": list(self.task.input_shape),
                "outputs": self.task.outputs,
                "n_classes": self.task.n_classes,
                "class_names": None
                if self.task.class_names is None
                else list(self.task.class_names),
            },
        }
        return {**known, **self.about, **({JOINED: dict(self.joined)} if self.joined else {})}

    @cached_property
    def _data_sha256(self) -> str:
        """Read once: rows of images may be many."""
        return fingerprint(founders(self.task, self.joined))

    @cached_property
    def id(self) -> str:
        """What the files of this run call it."""
        return run_id(self.config())

    def _finished(self, folder: RunFolder | None) -> dict[str, Any] | None:
        """The summary in the folder, if it is that of all rounds."""
        summary = None if folder is None else folder.summary(whole=True)
        done = sum(line["round"] >= 1 for line in self.history)
        return summary if summary is not None and summary["rounds"] == done else None

    def _run_all(
        self, first: int, federation: Federation, method: Method, folder: RunFolder | None
    ) -> None:
        try:
            slots, rows = method.room()
            federation.open(slots=slots, rows=rows)
            for number in range(first, self.rounds + 1):
                self._run_round(number, federation, method, folder)
                if self._stopped_early():
                    break
        finally:
            try:
                self._make_up(federation, folder)
            finally:
                federation.close()
                if folder is not None and self.unsaved is not None:
                    folder.rewind(self.history[: self.unsaved.facts["lines"]])
                    folder.save_checkpoint(self.unsaved)

    def _run_round(
        self, round: int, federation: Federation, method: Method, folder: RunFolder | None
    ) -> None:
        federation.begin_round(round)
        warm = round < 1
        if warm:
            record = Record()
            begun = time.perf_counter()
            record.failures = method.warm_up(round)
            record.seconds_train = time.perf_counter() - begun
        else:
            if round == 1:
                method.begin(method.state)
            record = method.run_round(round)
        self._make_up(federation, folder)
        if not self.history and (said := federation.batch_note()):
            record.notes.append(said)
        _check_finite(round, method.model)
        if self._may_wait(round, record) and federation.postpone(round, method.model):
            checkpoint = deepcopy(self._checkpoint(round, method))
            told = self._told(round, federation, record)
            self.unevaluated = Unevaluated(method.model, told, checkpoint)
            return
        worth = self._worth(round, federation, method.model, record)
        line = {**self._told(round, federation, record), **worth}
        if not warm and self._watch(line):
            self.best_state = method.model
        self._write_down(line, self._checkpoint(round, method), folder)

    def _may_wait(self, round: int, record: Record) -> bool:
        """Whether a round's evaluation may be done beside the next one."""
        return record.evaluation is None and round < self.rounds

    def _make_up(self, federation: Federation, folder: RunFolder | None) -> None:
        """Evaluate the round before, if that was put off, and write it down.

        A worker has done so meanwhile. A run that is killed before goes on from the round before.
        """
        left, self.unevaluated = self.unevaluated, None
        if left is not None:
            worth = self._worth(left.told["round"], federation, left.model)
            self._write_down({**left.told, **worth}, left.checkpoint, folder)

    def _write_down(
        self, line: HistoryLine, checkpoint: Checkpoint, folder: RunFolder | None
    ) -> None:
        """Keep a round and tell of it."""
        self.history.append(line)
        if folder is not None:
            if not self.claimed:
                folder.claim(self.config(), self.task, self.history[:-1])
                self.claimed = True
            self._keep(line, checkpoint, folder)
        if not self._audience.begun:
            out = None if folder is None else folder.path
            self._audience.begin(self.config(), self.history[:-1], out)
        self._audience.tell(line)

    def _keep(self, line: HistoryLine, checkpoint: Checkpoint, folder: RunFolder) -> None:
        """Write a round down; of quick ones on this machine, one a second and the last.

        Sites elsewhere remember two rounds, of which the checkpoint must be one.
        """
        due = self.engine is not None or time.monotonic() >= self.saved + PAUSE
        folder.add_round(line, flush=due)
        self.unsaved = None if due else deepcopy(checkpoint)
        if due:
            folder.save_checkpoint(checkpoint)
            self.saved = time.monotonic()

    def _worth(
        self, round: int, federation: Federation, state: Model, record: Record | None = None
    ) -> HistoryLine:
        """What the round's line says of the model; seconds are those that the run waited."""
        begun = time.perf_counter()
        known = None if record is None else record.evaluation
        evaluation = known or federation.evaluate(round, state)
        return {
            **asdict(evaluation.test or NOT_MEASURED),
            "validation_loss": evaluation.validation,
            "seconds_eval": time.perf_counter() - begun,
        }

    def _told(self, round: int, federation: Federation, record: Record) -> HistoryLine:
        """What it says besides."""
        told = asdict(record)
        extra = told.pop("extra")
        del told["evaluation"]
        told["notes"] += federation.notes
        line = {
            "round": round,
            "phase": "warm-up" if round < 1 else "training",
            **asdict(NOT_MEASURED),
            **told,
            **extra,
            **federation.facts,
            "bytes_up": federation.traffic.up,
            "bytes_down": federation.traffic.down,
        }
        return rounded(line)

    def _watch(self, line: HistoryLine) -> bool:
        """Follow the validation loss, if there is one; whether this round is the best so far."""
        loss = line["validation_loss"]
        if loss is None:
            return False
        if loss < self.best:
            self.best, self.since_best = loss, 0
            return True
        self.since_best += 1
        return False

    def _stopped_early(self) -> bool:
        patience = self.settings.early_stopping
        return patience is not None and self.since_best >= patience

    def _checkpoint(self, round: int, method: Method) -> Checkpoint:
        tensors = method.model.tensors()
        if self.best_state is not None:
            tensors |= self.best_state.tensors("best.")
        if round >= 1:
            tensors |= {f"memory.{name}": value for name, value in method.memory().items()}
        facts = method.facts() if round >= 1 else {}
        told = {"lines": len(self.history) + 1, "method": facts, "run": self.id}
        looks = method.federation.looks.items()
        if looks:
            told["looks"] = {name: [[*look, n] for look, n in of.items()] for name, of in looks}
        return Checkpoint(round, tensors, told)

    def _take_up(self, folder: RunFolder, method: Method, first: int) -> int:
        """Go on from the newest checkpoint; the first round to run."""
        found = folder.load_checkpoint(self.id)
        if found is None:
            return first
        checkpoint, history = found
        self.history = [_widened(line, len(self.task.sources)) for line in history]
        if checkpoint.round > self.rounds:
            raise OptionError(
                f"Expected `rounds` of at least the {checkpoint.round} that the run in "
                f"{folder.path} has done, but got {self.rounds}."
            )
        for line in self.history:
            if line["round"] >= 1:
                self._watch(line)
        try:
            self._restore(checkpoint, method)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise RunFolderError(
                f"Expected a checkpoint that fits this run in {folder.path / 'checkpoint'}, but it "
                f"does not ({type(error).__name__}: {error}): start again in a new folder."
            ) from error
        return checkpoint.round + 1

    def _restore(self, checkpoint: Checkpoint, method: Method) -> None:
        """Make method and model what they were; raises whatever does not fit."""
        tensors = checkpoint.tensors
        method.federation.looks = {
            name: Counter({Look(rate, noise): n for rate, noise, n in of})
            for name, of in checkpoint.facts.get("looks", {}).items()
        }
        state = _same_kind(model_of_tensors(tensors), method.state)
        if any(name.startswith("best.") for name in tensors):
            self.best_state = _same_kind(model_of_tensors(tensors, "best."), method.state)
        if checkpoint.round < 1:
            assert isinstance(state, State)
            method.state = state
        else:
            method.begin(state if isinstance(state, State) else method.state)
            method.remember(state, _under("memory.", tensors), checkpoint.facts["method"])


def _widened(line: HistoryLine, n_sources: int) -> HistoryLine:
    """A line of the history with nothing said of the sources that joined after it."""
    lists = {name: line[name] for name in PER_SOURCE if isinstance(line.get(name), list)}
    more = {name: [*own, *[None] * (n_sources - len(own))] for name, own in lists.items()}
    return {**line, **more}


class SpoiltModelError(FedbridgeError):
    """A round has made the model NaN or Inf; what was there before it is kept."""


def _check_finite(round: int, state: Model) -> None:
    """End the run before a model that is none is measured, written down or trained further."""
    if not all(bool(tensor.isfinite().all()) for tensor in state.tensors().values()):
        raise SpoiltModelError(
            f"Expected a finite model after round {round}, but it holds NaN or Inf: lower lr, or "
            f"look at the sites' data. Everything up to the round before is kept."
        )


def _same_kind(state: Model, wanted: Model) -> Model:
    """A state whose tensors have the names, types and sizes of another one; or made of such."""
    if isinstance(state, Blend | Recalled):
        for member in state.members if isinstance(state, Blend) else (state.state,):
            _same_kind(member, wanted)
        return state
    found, known = (
        {name: (value.dtype, tuple(value.shape)) for name, value in one.tensors().items()}
        for one in (state, wanted)
    )
    if found != known:
        raise ValueError(f"it holds {found} instead of {known}")
    return state


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
