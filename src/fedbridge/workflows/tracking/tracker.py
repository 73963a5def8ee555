"""What all trackers have in common: what is told, nothing twice, and never at the run's expense."""

from __future__ import annotations

import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fedbridge.base.errors import OptionError
from fedbridge.base.files import parse_json, read_text, to_json, write_atomically
from fedbridge.base.text import one_line
from fedbridge.federation.follow import Follower
from fedbridge.runs.lines import PER_SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fedbridge.federation.follow import HistoryLine

FOLDER = "tracking"
"""Where a run's folder keeps how far each tracker has been told."""
FINAL = "final/"
"""How the names of a finished run's measures begin."""
TOLD_OF_A_RUN = ("task", "target", "method", "seed", "rounds", "version", "data_sha256")
TOLD_OF_A_RESULT = (
    *("accuracy", "accuracy_last", "balanced_accuracy", "auc", "loss", "score", "sensitivity"),
    *("specificity", "precision", "bytes_up", "bytes_down", "seconds"),
)

Values = dict[str, float]


class TrackerUnavailableError(OptionError):
    """A tracker that cannot be used here, which is said before anything runs."""


class Tracker(Follower):
    """Tells a library of a run, round by round.

    A run that goes on is told further where it was: a round that the library knows is not told
    again, one that it missed is made up for. For that the run's folder keeps a small file. A
    library that fails costs a warning and the rest of its record, never the run.

    Attributes:
        name: what a command line calls it, and the extra of the package that brings the library.
        title: what people call it.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self) -> None:
        try:
            self.load()
        except ImportError as error:
            raise TrackerUnavailableError(
                f"Expected {self.title} to be installed, but it is not ({one_line(str(error))}): "
                f"pip install 'fedbridge[{self.name}]'."
            ) from error
        self.where = ""
        self._is_open = False
        self._reset({}, [], None)

    @abstractmethod
    def load(self) -> None:
        """Import the library; raises an ``ImportError`` where it is missing."""

    @abstractmethod
    def open(
        self, config: Mapping[str, Any], out: Path | None, known: str | None
    ) -> tuple[str, bool]:
        """Go on with the record ``known``, or start one.

        Returns:
            Its name, by which it is found again, and whether it is the one of before.
        """

    @abstractmethod
    def log(self, round: int, values: Values) -> None:
        """Record the measures of a round; when this returns, they are safe."""

    @abstractmethod
    def finish(self, round: int, values: Values) -> None:
        """Record the measures of the finished run."""

    @abstractmethod
    def close(self, *, whole: bool) -> None:
        """Let go of the record; not ``whole`` if the run was cut short."""

    def begin(
        self, config: Mapping[str, Any], history: Sequence[HistoryLine], out: Path | None
    ) -> None:
        """Take a run up; the library hears of it when there is something to tell."""
        self._reset(config, history, out)

    def __call__(self, line: HistoryLine) -> None:
        """Tell of a round."""
        self._missed.append(line)
        self._safely(self._catch_up)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Tell what came of the run."""
        self._safely(partial(self._catch_up, summary))
        if self._is_open:
            self._is_open = False
            self._safely(partial(self.close, whole=summary is not None), last=True)

    def _reset(
        self, config: Mapping[str, Any], history: Sequence[HistoryLine], out: Path | None
    ) -> None:
        self._config, self._missed, self._out = config, list(history), out
        self._file = None if out is None else out / FOLDER / f"{self.name}.json"
        self._told: dict[str, Any] = self._read()
        self._is_open = self._failed = False

    def _read(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        with suppress(OSError, ValueError):
            found = parse_json(read_text(self._file))
            kinds = {"id": str, "round": int, "finished": int}
            if isinstance(found, dict):
                return {k: v for k, v in found.items() if isinstance(v, kinds.get(k, ()))}
        return {}

    def _note(self, **told: object) -> None:
        self._told |= told
        if self._file is not None:
            write_atomically(self._file, to_json(self._told))

    def _catch_up(self, summary: Mapping[str, Any] | None = None) -> None:
        """Tell of the rounds, and of the result if there is one, as far as nobody has."""
        done = None if summary is None else int(summary["rounds"])
        finished = done is not None and self._told.get("finished") != done
        if finished or any(map(self._is_new, self._missed)):
            self._open()
        missed, self._missed = self._missed, []
        for line in filter(self._is_new, missed):
            self.log(line["round"], round_values(line, self._config["sources"]))
            self._note(round=line["round"])
        if finished and done is not None and summary is not None:
            self.finish(done, final_values(summary))
            self._note(finished=done)

    def _is_new(self, line: HistoryLine) -> bool:
        return bool(line["round"] > self._told.get("round", -math.inf))

    def _open(self) -> None:
        """Open the record, unless it is; one that is gone has been told nothing."""
        if not self._is_open:
            name, known = self.open(self._config, self._out, self._told.get("id"))
            self._is_open = True
            if not known:
                self._told = {"id": name}

    def _safely(self, work: Callable[[], None], *, last: bool = False) -> None:
        """Do something with the library; one that fails is named once, and only let go of then."""
        if self._failed and not last:
            return
        try:
            work()
        except Exception as error:
            if self._failed:
                return
            self._failed = True
            later = "" if self._file is None else f" (--resume --track {self.name} makes up for it)"
            warnings.warn(
                f"The run goes on without {self.title}, which failed{later}: "
                f"{type(error).__name__}: {one_line(str(error))}",
                stacklevel=3,
            )


def title_of(config: Mapping[str, Any]) -> str:
    """What to call a run."""
    return "-".join(str(config[name]) for name in ("task", "target", "method", "seed"))


def hyper_parameters(config: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """What decides a run, by plain names.

    Of the task's options only numbers: the others may be paths or names of columns, which are
    nobody's business where a tracker is a service elsewhere.
    """
    of_task = (config.get("loaded_as") or {}).get("options") or {}
    told: dict[str, Any] = {k: v for k, v in of_task.items() if isinstance(v, int | float)}
    told |= {name: config.get(name) for name in TOLD_OF_A_RUN}
    told |= {"sources": config["sources"], "model": config["model"]["name"]}
    settings = {k: v for k, v in config["settings"].items() if k != "model"}
    given = told | settings | dict(config["options"])
    return {name: _plain(value) for name, value in given.items() if value is not None}


def round_values(line: HistoryLine, sources: Sequence[str]) -> Values:
    """The numbers of a round; those of a source under the measure's name and the source's."""
    values: dict[str, object] = {}
    labels = labels_of(sources)
    for name, value in line.items():
        if name in PER_SOURCE and value is not None:
            values |= {f"{name}/{who}": one for who, one in zip(labels, value, strict=True)}
        elif isinstance(value, Mapping):
            values |= {f"{name}/{_label(str(key))}": one for key, one in value.items()}
        elif name != "round":
            values[name] = value
    betas = [beta for beta in line.get("beta") or () if beta is not None]
    if betas:
        values["mean_beta"] = sum(betas) / len(betas)
    values["clients_missing"] = len(line.get("failures") or ())
    return _numbers(values)


def final_values(summary: Mapping[str, Any]) -> Values:
    """The measures of a finished run."""
    return _numbers({f"{FINAL}{name}": summary.get(name) for name in TOLD_OF_A_RESULT})


def labels_of(names: Sequence[str]) -> list[str]:
    """Names of sources as every library takes them; different ones stay different."""
    labels = [_label(name) for name in names]
    return [
        label if labels.count(label) == 1 else f"{label} {place}"
        for place, label in enumerate(labels, 1)
    ]


def _label(text: str) -> str:
    """A name of letters, digits, blanks and a few signs: what MLflow takes, the strictest."""
    return re.sub(r"[^\w .-]", "_", text).strip() or "_"


def _numbers(values: Mapping[str, object]) -> Values:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _plain(value: object) -> str | int | float | bool:
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
