"""``fedbridge.run``: the round loop, its history, and a folder that survives being killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedbridge import methods
from fedbridge._version import __version__
from fedbridge.checkpoint import Checkpoint
from fedbridge.data.load import load_task
from fedbridge.distant import DistantSite
from fedbridge.errors import OptionError
from fedbridge.federation import Federation
from fedbridge.methods.base import Method, Record
from fedbridge.metrics import NOT_MEASURED
from fedbridge.model_card import write_model_card
from fedbridge.models import build_model
from fedbridge.needs import check_needs
from fedbridge.options import check_choice, check_whole
from fedbridge.report import write_report
from fedbridge.rundir import FORMAT, RunFolder, fingerprint
from fedbridge.seeds import seed_of
from fedbridge.settings import Settings, split_options
from fedbridge.sign_of_life import at_work
from fedbridge.state import State
from fedbridge.summary import summarise
from fedbridge.tested import Tested, write_tested
from fedbridge.training import seeded

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask
    from fedbridge.engines import Remote

INITIALISING = 50
ENGINES = ("local", "flower", "flower-sim")

Line = dict[str, Any]
Callback = Callable[[Line], object]


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        accuracy: mean of the last 5 rounds in percent; None for regression.
        history: one record per round.
        summary: the run in a few numbers, as in ``summary.json``.
        model: the target's model.
        out: the run's folder, if it was written.
    """

    accuracy: float | None
    history: list[Line]
    summary: dict[str, Any]
    model: nn.Module
    out: Path | None = None


def run(
    task: FederatedTask | str | Path,
    method: str = "auto",
    rounds: int = 50,
    seed: int = 0,
    engine: str = "local",
    out: str | Path | None = None,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> RunResult:
    """Train a federation for its target.

    Args:
        task: a task, or what ``load_task`` takes.
        method: a name of ``fedbridge.methods.names()``.
        rounds: rounds after the warm-up.
        seed: of the initial model and of everything random in training.
        engine: ``local``: clients run in this process and in worker processes. ``flower``: over
            a real network of Flower processes on this machine, with TLS and node keys.
            ``flower-sim``: in Flower's simulation.
        out: folder for configuration, history, checkpoints, model and report; None keeps nothing.
        resume: go on with the run in ``out``, or start it if there is none.
        callbacks: called with every round's record.
        **options: options of the run (``Settings``) and of the method.

    Example:
        >>> result = run("digits-noise", method="fedda", rounds=3, workers=1)
        >>> len(result.history)
        3
    """
    check_choice("engine", engine, ENGINES)
    rounds = check_whole("rounds", rounds, least=1)
    seed = check_whole("seed", seed, least=0)
    loaded = load_task(task, seed=seed) if isinstance(task, str | Path) else task
    if engine != "local":
        from fedbridge.engines.flower import run_here

        return run_here(
            loaded,
            method,
            rounds,
            seed,
            engine,
            None if out is None else Path(out),
            resume=resume,
            callbacks=callbacks,
            options=options,
        )
    settings, own = split_options(options, method, methods.options_of(method), loaded.defaults)
    playing = Run(loaded, method, rounds, seed, settings, own, callbacks)
    return playing.go(None if out is None else RunFolder(Path(out)), resume=resume)


@dataclass
class Run:
    """One run: everything between its configuration and its result, wherever its sites are."""

    task: FederatedTask
    method: str
    rounds: int
    seed: int
    settings: Settings
    options: dict[str, Any]
    callbacks: Sequence[Callback] = ()
    remote: Remote | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    history: list[Line] = field(default_factory=list)
    best: float = float("inf")
    since_best: int = 0
    best_state: State | None = None
    claimed: bool = False

    def go(self, folder: RunFolder | None, *, resume: bool) -> RunResult:
        """Start or resume, play all rounds, write the result; alone in the folder."""
        if folder is None:
            return self._go(None, resume=resume)
        folder.refuse_other_files()
        with at_work(folder.path):
            return self._go(folder, resume=resume)

    def _go(self, folder: RunFolder | None, *, resume: bool) -> RunResult:
        kind = methods.class_of(self.method)
        model_name = self.settings.model_name or self.task.model
        with seeded(seed_of(self.seed, 0, 0, INITIALISING), torch.device("cpu")):
            model = self._model()
            check_needs(self.method, kind.needs, self.task, model, model_name)
            blank = deepcopy(model)
            composed = kind.compose(model, self.task)
        federation = Federation(
            self.task, composed, self.settings, self.seed, kind.needs, self.remote
        )
        player = methods.make(self.method, federation, self.options)
        first = 1 - self.settings.warmup
        if folder is not None:
            folder.check(self.config(), resume=resume)
            first = self._take_up(folder, player, first)
        begun = time.perf_counter()
        nothing_to_play = first > self.rounds or self._stopped_early()
        if not nothing_to_play:
            self._play_all(first, federation, player, folder)
        result = player.state if self.best_state is None else self.best_state
        delivered = player.deliver(blank, result)
        finished = self._finished(folder) if nothing_to_play else None
        summary = finished or summarise(
            self.task,
            self.history,
            method=self.method,
            seed=self.seed,
            rounds=self.rounds,
            parameters=federation.blocks.total,
            seconds=time.perf_counter() - begun,
        )
        if folder is not None and finished is None:
            self._write_tested(folder, federation, result)
            write_model_card(folder.path, summary)
            folder.write_result(delivered, summary)
            write_report(folder.path)
        return RunResult(
            summary["accuracy"],
            self.history,
            summary,
            delivered.eval(),
            None if folder is None else folder.path,
        )

    def _model(self) -> nn.Module:
        """The initial model; a coordinator may have one that only holds parameters."""
        if self.remote is not None and isinstance(self.settings.model, nn.Module):
            return deepcopy(self.settings.model)
        return build_model(self.settings.model or self.task.model, self.task)

    def config(self) -> dict[str, Any]:
        """What the run is: with the same code of the model, the same bits come out."""
        known = {
            "format": FORMAT,
            "version": __version__,
            "task": self.task.name,
            "target": self.task.target.name,
            "sources": list(self.task.source_names),
            "loaded_as": self.task.manifest.get("loaded_as"),
            "method": self.method,
            "seed": self.seed,
            "rounds": self.rounds,
            "data_sha256": fingerprint(self.task),
            "settings": {k: v for k, v in self.settings.to_json().items() if k != "workers"},
            "options": {name: _plain(value) for name, value in self.options.items()},
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
        return {**known, **self.about}

    def _write_tested(self, folder: RunFolder, federation: Federation, state: State) -> None:
        """Keep what the delivered model says of the test rows, for everything but one number.

        Not where these rows are elsewhere: they stay there.
        """
        if isinstance(self.task.test, DistantSite):
            return
        outputs = federation.predict(state, self.task.test)
        if bool(outputs.isfinite().all()):
            rows = len(self.task.test)
            write_tested(folder.path, Tested(outputs.reshape(rows, -1), self.task.test.y))

    def _finished(self, folder: RunFolder | None) -> dict[str, Any] | None:
        """The summary in the folder, if it is that of all rounds."""
        summary = None if folder is None else folder.summary()
        played = sum(line["round"] >= 1 for line in self.history)
        return summary if summary is not None and summary["rounds"] == played else None

    def _play_all(
        self, first: int, federation: Federation, player: Method, folder: RunFolder | None
    ) -> None:
        try:
            slots, rows = player.room()
            federation.open(slots=slots, rows=rows)
            for number in range(first, self.rounds + 1):
                self._play(number, federation, player, folder)
                if self._stopped_early():
                    break
        finally:
            federation.close()

    def _play(
        self, round: int, federation: Federation, player: Method, folder: RunFolder | None
    ) -> None:
        federation.bytes_up = federation.bytes_down = 0
        if federation.remote is not None:
            federation.remote.round = round
        warm = round < 1
        if warm:
            record = Record()
            begun = time.perf_counter()
            player.state, record.failures = federation.warm_up(round, player.state)
            record.seconds_train = time.perf_counter() - begun
        else:
            if round == 1:
                player.begin(player.state)
            record = player.play(round)
        line = self._line(round, federation, player.state, record)
        self.history.append(line)
        if not warm and self._watch(line):
            self.best_state = player.state
        if folder is not None:
            if not self.claimed:
                folder.claim(self.config(), self.task, self.history[:-1])
                self.claimed = True
            folder.add_round(line)
            folder.save_checkpoint(self._checkpoint(round, player))
        for callback in self.callbacks:
            callback(line)

    def _line(self, round: int, federation: Federation, state: State, record: Record) -> Line:
        begun = time.perf_counter()
        evaluation = record.evaluation or federation.judge(round, state)
        seconds_eval = time.perf_counter() - begun
        told = asdict(record)
        extra = told.pop("extra")
        del told["evaluation"]
        if federation.remote is not None:
            federation.bytes_up, federation.bytes_down = federation.remote.traffic()
            told["notes"] += federation.remote.notes
            extra |= federation.remote.facts
            federation.remote.notes, federation.remote.facts = [], {}
        return {
            "round": round,
            "phase": "warm-up" if round < 1 else "training",
            **asdict(evaluation.test or NOT_MEASURED),
            **told,
            **extra,
            "validation_loss": evaluation.validation,
            "seconds_eval": seconds_eval,
            "bytes_up": federation.bytes_up,
            "bytes_down": federation.bytes_down,
        }

    def _watch(self, line: Line) -> bool:
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

    def _checkpoint(self, round: int, player: Method) -> Checkpoint:
        tensors = player.state.tensors()
        if self.best_state is not None:
            tensors |= self.best_state.tensors("best.")
        if round >= 1:
            tensors |= {f"memory.{name}": value for name, value in player.memory().items()}
        facts = player.facts() if round >= 1 else {}
        return Checkpoint(round, tensors, {"lines": len(self.history), "method": facts})

    def _take_up(self, folder: RunFolder, player: Method, first: int) -> int:
        """Go on from the newest checkpoint; the first round to play."""
        found = folder.load_checkpoint()
        if found is None:
            return first
        checkpoint, self.history = found
        if checkpoint.round > self.rounds:
            raise OptionError(
                f"Expected `rounds` of at least the {checkpoint.round} that the run in "
                f"{folder.path} has played, but got {self.rounds}."
            )
        for line in self.history:
            if line["round"] >= 1:
                self._watch(line)
        tensors = checkpoint.tensors
        state = State.of_tensors(tensors)
        if "best.parameters" in tensors:
            self.best_state = State.of_tensors(tensors, "best.")
        if checkpoint.round < 1:
            player.state = state
        else:
            player.begin(state)
            player.remember(state, _under("memory.", tensors), checkpoint.facts["method"])
        return checkpoint.round + 1


def check_travels(method: str) -> None:
    """Refuse a method that needs rows or personal models of others in one place."""
    if methods.class_of(method).travels:
        return
    able = [name for name in methods.names() if methods.class_of(name).travels]
    raise OptionError(
        f"Expected a method that works with sites elsewhere, but {method!r} needs rows or personal "
        f"models in one place: choose one of {', '.join(able)}, or the engine 'local'."
    )


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _plain(value: Any) -> Any:
    """Tensors and numpy values as plain Python ones, for files."""
    return value.tolist() if hasattr(value, "tolist") else value
