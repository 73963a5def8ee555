"""Writes hospitals.csv: synthetic patients of four hospitals. No real person is in it.

The hospitals measure the same disease in different populations, as real ones do: Riverside sees
older patients, Lakeside notes a higher blood pressure (another device), Hillcrest often lacks the
cholesterol value, and Northgate, a new one, sees young patients whose cholesterol says less.

    python make_data.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 2024
PAIN_TYPES = ("asymptomatic", "atypical", "non-anginal", "typical")


@dataclass(frozen=True)
class Hospital:
    """What makes one hospital's patients and habits its own."""

    name: str
    patients: int
    age: float
    blood_pressure_offset: float
    cholesterol_effect: float
    cholesterol_missing: float


HOSPITALS = (
    Hospital("Hillcrest", 170, 54, 0, 0.9, 0.20),
    Hospital("Lakeside", 150, 56, 12, 0.8, 0.04),
    Hospital("Northgate", 240, 46, 4, 0.2, 0.08),
    Hospital("Riverside", 140, 63, 2, 1.0, 0.05),
)


def patients(hospital: Hospital, rng: np.random.Generator) -> pd.DataFrame:
    """The patients of one hospital."""
    n = hospital.patients
    age = np.clip(rng.normal(hospital.age, 9, n), 25, 90).round()
    male = rng.random(n) < 0.62
    pain = rng.choice(PAIN_TYPES, n, p=(0.45, 0.2, 0.25, 0.1))
    pressure = rng.normal(118 + 0.25 * age, 14, n)
    cholesterol = rng.normal(195 + 0.8 * age, 42, n)
    risk = (
        -1.2
        + 0.1 * (age - hospital.age)
        + 1.8 * male
        + np.where(pain == "asymptomatic", 2.4, -1.6)
        + 0.04 * (pressure - 131)
        + 2 * hospital.cholesterol_effect * (cholesterol - 238) / 42
    )
    disease = rng.random(n) < 1 / (1 + np.exp(-risk))
    frame = pd.DataFrame(
        {
            "hospital": hospital.name,
            "age": age.astype(int),
            "sex": np.where(male, "male", "female"),
            "chest_pain": pain,
            "blood_pressure": (pressure + hospital.blood_pressure_offset).round().astype(int),
            "cholesterol": pd.array(cholesterol.round().astype(int), dtype="Int64"),
            "disease": np.where(disease, "yes", "no"),
        }
    )
    frame.loc[rng.random(n) < hospital.cholesterol_missing, "cholesterol"] = pd.NA
    frame.loc[rng.random(n) < 0.02, "blood_pressure"] = pd.NA
    return frame


def main() -> None:
    """Write the file beside this script, the same one at every run."""
    rng = np.random.default_rng(SEED)
    table = pd.concat([patients(hospital, rng) for hospital in HOSPITALS], ignore_index=True)
    table["blood_pressure"] = table["blood_pressure"].astype("Int64")
    file = Path(__file__).with_name("hospitals.csv")
    table.to_csv(file, index=False, lineterminator="\n")
    print(f"{len(table)} synthetic patients written to {file.name}")


if __name__ == "__main__":
    main()
