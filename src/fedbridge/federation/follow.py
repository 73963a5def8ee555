"""Who follows a run: callbacks for its rounds, and those that also hear how it begins and ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

HistoryLine = dict[str, Any]
Callback = Callable[[HistoryLine], object]


class Follower(ABC):
    """A callback that wants to know more than rounds: what is run, and what came of it."""

    @abstractmethod
    def begin(
        self, config: Mapping[str, Any], history: Sequence[HistoryLine], out: Path | None
    ) -> None:
        """Before the first round that it is called with.

        Args:
            config: what is run, as in ``config.toml``.
            history: the rounds before that, of a run that goes on.
            out: the run's folder, if it has one.
        """

    @abstractmethod
    def __call__(self, line: HistoryLine) -> None:
        """Another round."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any] | None) -> None:
        """What came of the run, as in ``summary.json``; None if it was cut short."""


class Audience:
    """All who follow one run; used as a context, it tells them when the run is cut short.

    Nobody hears of a run before its first round has shown that it works and its folder is claimed:
    what followers write there is not in the way of another try.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._followers = [one for one in callbacks if isinstance(one, Follower)]
        self.begun, self._ended = not self._followers, False

    def __enter__(self) -> Audience:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.begun and not self._ended:
            self._end(None)

    def begin(
        self, config: Mapping[str, Any], history: Sequence[HistoryLine], out: Path | None
    ) -> None:
        """Tell what is run, once."""
        if not self.begun:
            self.begun = True
            for follower in self._followers:
                follower.begin(config, history, out)

    def tell(self, line: HistoryLine) -> None:
        """Tell of a round."""
        for callback in self._callbacks:
            callback(line)

    def end(
        self,
        config: Mapping[str, Any],
        history: Sequence[HistoryLine],
        out: Path | None,
        summary: Mapping[str, Any],
    ) -> None:
        """Tell what came of it, also of a run that was finished before, whose rounds are these."""
        self.begin(config, history, out)
        self._end(summary)

    def _end(self, summary: Mapping[str, Any] | None) -> None:
        self._ended = True
        for follower in self._followers:
            follower.end(summary)
