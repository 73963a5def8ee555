"""Runs and comparisons written by hand, and pages read back the way a browser would."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser

import tomli_w
import torch

from fedbridge.runs.record import Tested, write_tested

VOID = {"meta", "link", "br", "input"}


@dataclass
class Element:
    name: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def text(self):
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, name=None, **attributes):
        """All elements below with this name and these attributes; ``class_`` is one of many."""
        return [e for e in self._below() if e.is_like(name, attributes)]

    def one(self, name=None, **attributes):
        (found,) = self.all(name, **attributes)
        return found

    def is_like(self, name, attributes):
        wanted = dict(attributes)
        style = wanted.pop("class_", None)
        return (
            name in (None, self.name)
            and (style is None or style in (self.attributes.get("class") or "").split())
            and all(self.attributes.get(key) == value for key, value in wanted.items())
        )

    def _below(self):
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child._below()


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().name == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(html):
    """The elements of a page, all of which must be closed."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def charts(page):
    """The charts of a page as its script sees them, by their keys."""
    return json.loads(page.one("script", id="charts").text)["charts"]


def chart_rows(page, key, name="values"):
    """The rows of a chart's data, unpacked."""
    packed = charts(page)[key]["data"][name]
    columns = {
        field: [column["of"][place] for place in column["at"]]
        if isinstance(column, dict)
        else column
        for field, column in packed.items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def points_of(page, key):
    """The points of every line of a chart."""
    found = {}
    for row in chart_rows(page, key):
        found.setdefault(row["s"], []).append((row["x"], row["y"]))
    return found


def chart_titles(page):
    return [caption.text for caption in page.all("figcaption")]


def cells(table):
    return [
        [cell.text for cell in row.children]
        for body in table.all("tbody")
        for row in body.all("tr")
    ]


def table_called(page, caption):
    return next(t for t in page.all("table") if caption in t.one("caption").text)


def line(round, n_sources, **changes):
    """A round of a history."""
    made = {
        "round": round,
        "phase": "training",
        "loss": 2.0 / (abs(round) + 1),
        "accuracy": 50.0 + round,
        "balanced_accuracy": 49.0 + round,
        "auc": None,
        "beta": [0.1 * k for k in range(n_sources)],
        "sigma2": 1.5,
        "d2": [-0.2 + k for k in range(n_sources)],
        "tau2_d2": [0.1 + 0.5 * k for k in range(n_sources)],
        "cosine": [0.5] * n_sources,
        "failures": {},
        "notes": [],
        "validation_loss": None,
        "seconds_train": 0.1,
        "bytes_up": 1000,
        "bytes_down": 2000,
    }
    return made | changes


def write_run(
    folder,
    history,
    *,
    sources=("A", "B"),
    target="home",
    rounds=None,
    finished=True,
    n_test=400,
    n_classes=3,
    settings=(("lr", 0.1),),
    origin="digits",
    loaded_as="digits-noise",
    network="mlp",
    summary=(),
    outputs=None,
    labels=None,
):
    """A run's folder as ``fedbridge.run`` leaves it; with outputs, also what the test showed.

    ``loaded_as`` is the task as ``load_task`` was asked for it; None for one made in Python.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rounds = len(history) if rounds is None else rounds
    model = {"name": network, "input_shape": [4], "outputs": 3, "class_names": ["<b>", "&amp;"]}
    config = {
        "format": 1,
        "version": "0.1.0",
        "task": "digits-noise",
        "target": target,
        "sources": list(sources),
        "method": "fedgp",
        "seed": 7,
        "rounds": rounds,
        "data_sha256": "0123456789abcdef",
        "settings": dict(settings),
        "options": {},
        "model": model if n_classes is None else model | {"n_classes": n_classes},
    }
    if loaded_as is not None:
        config["loaded_as"] = {"task": loaded_as, "options": {}}
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    text = "".join(json.dumps(entry) + "\n" for entry in history)
    (folder / "history.jsonl").write_text(text, encoding="utf-8")
    manifest = {
        "origin": origin,
        "seed": 7,
        "sources": {name: list(range(10 + k)) for k, name in enumerate(sources)},
        "target": [1, 2, 3],
        "test": list(range(n_test)),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    if finished:
        last = history[-1]
        found = {
            "rounds": sum(entry["round"] >= 1 for entry in history),
            "accuracy": last["accuracy"],
            "accuracy_last": last["accuracy"],
            "balanced_accuracy": last["balanced_accuracy"],
            "loss": last["loss"],
            "auc": None,
            "score": None,
            "accuracy_interval": None,
            "stopped_early": False,
            "n_test": n_test,
            "seconds": 75.0,
            "notes": [],
        }
        text = json.dumps(found | dict(summary))
        (folder / "summary.json").write_text(text, encoding="utf-8")
    if outputs is not None:
        write_tested(folder, Tested(outputs, labels))
    return folder


def two_classes(rows=60, seed=0):
    """Outputs that tell two classes apart, though not always, and the truth."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 2
    margin = 2.0 * labels - 1 + torch.randn(rows, generator=generator)
    return torch.stack([-margin / 2, margin / 2], dim=1), labels


def cell(setting, method, seed, accuracy=None, *, error=None, score=None, n_test=400):
    """A cell of a comparison: finished if it has an accuracy or a score."""
    summary = None
    if accuracy is not None or score is not None:
        summary = {
            "rounds": 20,
            "stopped_early": False,
            "auc": None,
            "accuracy": accuracy,
            "score": score,
            "accuracy_interval": None if accuracy is None else [accuracy - 2, accuracy + 2],
            "n_test": n_test,
        }
    folder = f"cells/{setting}-{method}-{seed}"
    return {
        "setting": setting,
        "method": method,
        "seed": seed,
        "folder": folder,
        "summary": summary,
        "error": error,
    }


def write_comparison(folder, cells, **changes):
    """A comparison's folder as ``fedbridge.compare`` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)

    def different(key):
        return list(dict.fromkeys(entry[key] for entry in cells))

    content = {
        "format": 1,
        "settings": different("setting"),
        "methods": different("method"),
        "seeds": different("seed"),
        "rounds": 20,
        "cells": cells,
        "control_note": "A note for readers.",
        "tasks": [
            {"label": label, "task": "digits-noise", "target": None, "options": {"noise": 0.4}}
            for label in different("setting")
        ],
        "options": {"lr": 0.1},
    }
    text = json.dumps(content | changes)
    (folder / "comparison.json").write_text(text, encoding="utf-8")
    return folder
