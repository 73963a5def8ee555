"""Tasks that a process has loaded, for the next run that asks for the same one.

The runs of a comparison share few tasks. A task is loaded again when a file that it is read from
has changed, as far as name, size and time of the files in its folder and their folders tell.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedbridge.base.files import to_json
from fedbridge.base.places import data_root
from fedbridge.base.values import canonical, is_plain
from fedbridge.data.load import load_task, read_task_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedbridge.data.task import FederatedTask

MOST_BYTES = 2**29
"""What rows of loaded tasks may take, beyond those of the task that is asked for."""

_tasks: OrderedDict[str, FederatedTask] = OrderedDict()


def load_once(
    name: str, target: str | None, seed: int, options: Mapping[str, Any]
) -> FederatedTask:
    """The task as ``load_task`` loads it; rows that are here already are not read again."""
    if not all(map(is_plain, options.values())):
        return load_task(name, target, seed, **options)
    asked = {"task": name, "target": target, "seed": seed, "options": canonical(dict(options))}
    key = to_json({**asked, "files": [list(stamp) for stamp in _stamps(name)]})
    if key not in _tasks:
        _tasks[key] = load_task(name, target, seed, **options)
    _tasks.move_to_end(key)
    task = _tasks[key]
    while len(_tasks) > 1 and sum(map(_bytes, _tasks.values())) - _bytes(task) > MOST_BYTES:
        _tasks.popitem(last=False)
    return task


def _stamps(name: str) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of every file that tells whether a task has changed."""
    path = Path(name)
    if path.suffix.lower() == ".toml" and path.is_file():
        yield from _stamps_of(path)
        yield from _stamps(str(read_task_file(path).source))
    elif path.exists():
        yield from _stamps_of(path)
    else:
        yield from _stamps_of(data_root())


def _stamps_of(path: Path, depth: int = 2) -> Iterator[tuple[str, int, int]]:
    try:
        found = path.stat()
        inside = sorted(path.iterdir()) if depth and path.is_dir() else []
    except OSError:
        return
    yield str(path), found.st_size, found.st_mtime_ns
    for entry in inside:
        yield from _stamps_of(entry, depth - 1)


def _bytes(task: FederatedTask) -> int:
    """What the rows of a task take in memory; those that are on disk take nothing."""
    sites = (*task.sources, task.target, task.test, task.target_pool)
    rows = [part for site in sites if site is not None for part in (site.x, site.y)]
    held = [part for part in (*rows, task.unlabelled) if isinstance(part, Tensor)]
    return sum(part.nbytes for part in held)
