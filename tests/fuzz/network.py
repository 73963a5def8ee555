"""Hostile replies to a coordinator, and hostile requests to a site."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fuzz.folders import edited
from fuzz.harness import Case
from fuzz.inputs import spoilt

sys.path.append(str(Path(__file__).parents[1] / "flower"))

Spoil: TypeAlias = Callable[[Any], None]


def _spoil_content(rng: random.Random, content: Any) -> None:
    """Change a record of a message in place: arrays, numbers or the JSON in it."""
    from flwr.app import Array, ConfigRecord, MetricRecord

    everything = [
        *content.array_records.items(),
        *content.config_records.items(),
        *content.metric_records.items(),
    ]
    if not everything or rng.random() < 0.1:
        content["more"] = rng.choice(
            [ConfigRecord({"x": "y" * 10**5}), MetricRecord({"epsilon": float("nan")})]
        )
        return
    name, record = rng.choice(everything)
    if rng.random() < 0.1:
        del content[name]
        return
    if not record:
        return
    key = rng.choice(list(record))
    value = record[key]
    how = rng.randrange(5)
    if how == 0:
        del record[key]
    elif isinstance(value, Array):
        numbers = rng.choice(
            [
                np.full(7, rng.choice([np.nan, np.inf, 1e30, -1e300, 0.0])),
                value.numpy().astype(rng.choice([np.float64, np.int8, np.complex64])),
                value.numpy() * rng.choice([1e4, 1e30, np.nan]),
                value.numpy()[..., None],
                np.zeros((0, 3)),
            ]
        )
        array = Array(numbers)
        if how == 1:
            array.data = spoilt(rng, value.data)
        elif how == 2:
            array.shape = rng.choice([(10**12,), (-1,), (0,), (2**40, 2**40)])
        record[key] = array
    elif isinstance(value, str) and value[:1] in "[{":
        record[key] = rng.choice(
            [json.dumps(edited(rng, json.loads(value))), "[" * 10**5, "", "null", '{"a":' * 10**4]
        )
    elif isinstance(value, str):
        record[key] = rng.choice(["", "x" * 10**5, "\x1b[31m", "../../x", "nonsense"])
    elif isinstance(value, bool | int | float):
        record[key] = rng.choice([0, -1, 2**62, float("nan"), float("inf"), -5.0, 1e300])
    else:
        record[key] = rng.choice([[], [1], ["x"] * 3000, [float("nan")]])


def _federation(place: Path, method: str, which: int, spoil: Spoil, **options: Any) -> Any:
    """A run of two rounds in one process, one of whose nodes has its messages spoilt."""
    from pretend import PretendGrid, nodes_of, run_over_pretended_flower
    from small import blobs

    task = blobs(rows=12, sources=3)
    nodes = nodes_of(task, place / "memory")
    spoil(nodes[which])
    quick = {"model": "linear", "timeout": 0.2, "wait": 0.2, "batch_size": 4}
    strategy, _ = run_over_pretended_flower(
        task, method, 2, place, PretendGrid(nodes), **quick, **options
    )
    return strategy.result


def replies(rng: random.Random, place: Path) -> Case:
    """One site's answers are spoilt; the run goes on without it, or ends with an error."""
    method, which = rng.choice(["auto", "fedda", "fedgp-auto"]), rng.randrange(4)
    drawn, chance = random.Random(rng.randrange(2**32)), rng.choice([0.3, 1.0])

    def spoilt_answer(question: Any, answer: Any) -> Any:
        if drawn.random() < chance and answer.has_content():
            _spoil_content(drawn, answer.content)
        return answer

    def spoil(node: Any) -> None:
        node.spoil = spoilt_answer

    def do() -> None:
        model = _federation(place, method, which, spoil, out=place / "run").model
        assert all(bool(value.isfinite().all()) for value in model.state_dict().values())

    return Case(f"{method}, site {which}, {chance:.0%}", do, writes=("memory", "run"), logs=True)


def requests(rng: random.Random, place: Path) -> Case:
    """A coordinator asks a site for something else than it would: an error that quotes nothing."""
    method, which = rng.choice(["auto", "fedda", "fedgp-auto"]), rng.randrange(4)
    drawn = random.Random(rng.randrange(2**32))

    def spoil(node: Any) -> None:
        honest = node.app

        def app(message: Any, context: Any) -> Any:
            if drawn.random() < 0.5 and message.has_content():
                _spoil_content(drawn, message.content)
            return honest(message, context)

        node.app = app

    return Case(
        f"{method}, site {which}",
        lambda: _federation(place, method, which, spoil),
        writes=("memory",),
        logs=True,
    )
