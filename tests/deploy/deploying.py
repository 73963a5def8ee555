"""A small deployment, and the data of its sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedbridge.deploy.folders import Deployment, DeploymentPlan
from fedbridge.deploy.writing import write_deployment

if TYPE_CHECKING:
    from pathlib import Path

SOURCES, TARGET = ("A", "B"), "T"


def plan(**changes: object) -> DeploymentPlan:
    return DeploymentPlan(**{"sources": SOURCES, "target": TARGET, "rounds": 2, **changes})


def patients(site: str, **changes: object) -> pd.DataFrame:
    rng = np.random.default_rng(sum(site.encode()))
    frame = {
        "age": rng.integers(20, 80, 40),
        "sex": ["f", "m"] * 20,
        "label": ["no", "yes", "yes", "no"] * 10,
    }
    return pd.DataFrame({**frame, **changes})


def deployment(folder: Path, **changes: object) -> Deployment:
    """A deployment as ``deploy init`` leaves it."""
    write_deployment(plan(**changes), folder)
    return Deployment(folder)


def give_data(made: Deployment, **tables: pd.DataFrame) -> None:
    """Every site gets a CSV and says so in its settings; some may get a table of their own."""
    for name in made.plan().sites:
        site = made.site(name)
        csv = site.folder / "patients.csv"
        tables.get(name, patients(name)).to_csv(csv, index=False)
        settings = site.settings_file.read_text()
        site.settings_file.write_text(settings.replace('data = ""', f'data = "{csv}"'))


def add_settings(site, lines):
    site.settings_file.write_text(f"{site.settings_file.read_text()}\n{lines}\n")
