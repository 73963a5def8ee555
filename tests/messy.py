"""Tables of a consortium in which everybody spells things as they like, and what puts it right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pathlib import Path

SOURCES, TARGET = ("A", "B", "D"), "T"
"""A is as agreed."""
SETTINGS = {
    "B": {
        "delimiter": "|",
        "encoding": "cp1252",
        "rename": {"AgeYears": "age", "Geschlecht": "sex"},
        "recode": {"sex": {"männlich": "m", "Weiblich": "f"}, "grade.x": {"v.1": "low", "9": ""}},
        "label-map": {"ja": "1", "nein": "0"},
        "drop-columns": "Bemerkung",
        "id-column": "Fall",
    },
    "T": {
        "decimal": ",",
        "rename": {"Chol.": "chol"},
        "units": {"chol": {"factor": 40.0, "offset": 1.0}},
    },
}
"""What each site says of its own file; D says nothing and has no cholesterol."""


def agreed(site: str, n: int = 40) -> pd.DataFrame:
    """A site's table as all mean it."""
    rng = np.random.default_rng(sum(site.encode()))
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, n),
            "sex": ["f", "m"] * (n // 2),
            "chol": 1.0 + 40.0 * rng.integers(8, 20, n) / 2,
            "grade.x": ["low", "high", "low", "", "high"] * (n // 5),
            "label": [0, 1, 1, 0] * (n // 4),
        }
    )


def as_spelled(site: str, table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The same as the site itself has it, and how it is saved."""
    if site == "B":
        table = table.rename(columns={"age": "AgeYears", "sex": "Geschlecht"})
        table["Geschlecht"] = table["Geschlecht"].map({"m": "Männlich", "f": "weiblich"})
        table["grade.x"] = table["grade.x"].map({"low": "v.1", "high": "high", "": "9"})
        if "label" in table:
            table["label"] = table["label"].map({1: "ja", 0: "Nein"})
        cases = [f"ß-{number}" for number in range(len(table))]
        return table.assign(Bemerkung="ß", Fall=cases), {"sep": "|", "encoding": "cp1252"}
    if site == "T":
        table = table.rename(columns={"chol": "Chol."}).assign(number=range(1, len(table) + 1))
        return table.assign(**{"Chol.": (table["Chol."] - 1) / 40}), {"sep": ";", "decimal": ","}
    return (table.drop(columns="chol") if site == "D" else table), {}


def write_agreed(folder: Path) -> Path:
    """A folder of tables as all mean them; that of D lacks a column."""
    folder.mkdir()
    for site in (*SOURCES, TARGET):
        table = agreed(site)
        table = table.drop(columns="chol") if site == "D" else table
        table.to_csv(folder / f"{site}.csv", index=False)
    return folder


def write_messy(folder: Path) -> Path:
    """The same as the sites have them."""
    folder.mkdir()
    for site in (*SOURCES, TARGET):
        table, how = as_spelled(site, agreed(site))
        table.to_csv(folder / f"{site}.csv", index=False, **how)
    return folder
