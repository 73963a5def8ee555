"""Writes data/*.csv: synthetic patients of four emergency departments. No real person is in them.

Is it sepsis? The departments see the same disease, but not the same patients: Harbour takes the
ambulances of a port, Hillside is in a young town, Meadow sees many old people and measures lactate
late, and Westend is new: few patients so far, and a thermometer that reads low.

    python make_departments.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 2025
FOLDER = Path(__file__).parent
ARRIVALS = ("ambulance", "referred", "walk-in")


@dataclass(frozen=True)
class Department:
    """What makes one department's patients and habits its own."""

    name: str
    patients: int
    age: float
    arrivals: tuple[float, float, float]
    lactate_effect: float
    lactate_missing: float
    thermometer: float


DEPARTMENTS = (
    Department("Harbour", 260, 58, (0.5, 0.2, 0.3), 1.2, 0.05, 0.0),
    Department("Hillside", 220, 41, (0.2, 0.2, 0.6), 1.0, 0.15, 0.1),
    Department("Meadow", 300, 74, (0.4, 0.4, 0.2), 0.6, 0.35, 0.0),
    Department("Westend", 120, 52, (0.3, 0.1, 0.6), 1.1, 0.10, -0.6),
)


def patients(department: Department, rng: np.random.Generator) -> pd.DataFrame:
    """The patients of one department."""
    n = department.patients
    age = np.clip(rng.normal(department.age, 14, n), 18, 99).round().astype(int)
    arrival = rng.choice(ARRIVALS, n, p=department.arrivals)
    pulse = rng.normal(92, 17, n)
    temperature = rng.normal(37.6, 0.9, n)
    lactate = rng.lognormal(0.5, 0.5, n)
    risk = (
        -1.4
        + 0.03 * (age - 55)
        + 0.05 * (pulse - 92)
        + 0.9 * (temperature - 37.6)
        + department.lactate_effect * (lactate - 1.9)
        + np.where(arrival == "walk-in", -0.9, 0.5)
    )
    sepsis = rng.random(n) < 1 / (1 + np.exp(-1.5 * risk))
    measured = np.where(rng.random(n) < department.lactate_missing, np.nan, lactate.round(1))
    return pd.DataFrame(
        {
            "age": age,
            "arrival": arrival,
            "pulse": pulse.round().astype(int),
            "temperature": (temperature + department.thermometer).round(1),
            "lactate": measured,
            "sepsis": np.where(sepsis, "yes", "no"),
        }
    )


def main() -> None:
    """Write a file for each department, the same ones at every run."""
    for number, department in enumerate(DEPARTMENTS):
        table = patients(department, np.random.default_rng([SEED, number]))
        file = FOLDER / "data" / f"{department.name}.csv"
        table.to_csv(file, index=False, lineterminator="\n")
        print(f"{len(table)} synthetic patients written to {file.relative_to(FOLDER)}")


if __name__ == "__main__":
    main()
