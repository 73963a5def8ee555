"""Many small jobs on all cores: threads, results in order, a progress bar when it takes long.

Threads suit work that leaves Python alone: decoding images, hashing files, running a network.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedbridge.base.processes import core_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds of work before a progress bar is worth looking at."""


def by_chunks(
    function: Callable[[Sequence[Path]], T], files: Sequence[Path], size: int, doing: str
) -> Iterator[T]:
    """What ``function`` makes of the files, ``size`` at a time, in order.

    Chunks are the same on every machine and each runs on one torch thread, so that results do not
    depend on the number of cores. Only a few results wait for the reader at any time.

    Args:
        function: Called with some files, in several threads at once.
        files: All files.
        size: Files per call.
        doing: What is being done, for the progress bar.
    """
    threads = core_count()
    waiting: deque[tuple[Future[T], int]] = deque()
    default_of_new_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
    try:
        with _late_progress(doing, len(files)) as advance:

            def oldest() -> T:
                future, count = waiting.popleft()
                result = future.result()
                advance(count)
                return result

            for start in range(0, len(files), size):
                chunk = files[start : start + size]
                waiting.append((pool.submit(function, chunk), len(chunk)))
                if len(waiting) > 2 * threads:
                    yield oldest()
            while waiting:
                yield oldest()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(default_of_new_threads)


@contextmanager
def _late_progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A callback that counts, and shows a bar on a terminal once the work has taken a while."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    counter = bar.add_task(doing, total=total)
    somebody_looks = sys.stderr.isatty() and parent_process() is None
    begun = monotonic()

    def advance(count: int) -> None:
        bar.advance(counter, count)
        if somebody_looks and not bar.live.is_started and monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
