"""The target's model, kept with the target: a folder that ``fedbridge predict`` reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import tomli_w

from fedbridge._version import __version__
from fedbridge.files import write_atomically
from fedbridge.rundir import FORMAT, RunFolder
from fedbridge.settings import OBJECT_MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from fedbridge.data.site_package import LocalSite
    from fedbridge.engines.flower.orders import Orders
    from fedbridge.metrics import Evaluation

FOLDER = "model"


def keep_model(
    folder: Path, site: LocalSite, orders: Orders, model: nn.Module, evaluation: Evaluation
) -> None:
    """Write the model, how to treat new rows, and what it is worth on the target's test rows."""
    described = {
        "name": orders.model or f"{OBJECT_MODEL}{type(model).__qualname__}",
        "input_shape": list(site.train.x.shape[1:]),
        "outputs": site.n_classes or (1 if site.train.y.ndim == 1 else site.train.y.shape[1]),
    }
    if site.n_classes is not None:
        described["n_classes"] = site.n_classes
    if site.class_names is not None:
        described["class_names"] = list(site.class_names)
    config = {
        "format": FORMAT,
        "version": __version__,
        "target": site.name,
        "sources": list(orders.sources),
        "method": orders.method,
        "seed": orders.seed,
        "model": described,
    }
    kept = RunFolder(folder / FOLDER)
    write_atomically(kept.path / "config.toml", tomli_w.dumps(config))
    if site.preprocessing is not None:
        write_atomically(kept.path / "preprocessing.json", site.preprocessing.to_json())
    measured = {} if evaluation.test is None else asdict(evaluation.test)
    kept.write_result(model, {"target": site.name, "method": orders.method, **measured})
