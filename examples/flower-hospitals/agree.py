"""Writes flower_hospitals/schema.json: what the departments agree on before they train.

Each file is described on its own, as each department would do it at home; only the descriptions
meet. They hold names of columns, categories and labels, and no row.

    python agree.py
"""

from __future__ import annotations

from pathlib import Path

from fedbridge.data.tables.load import describe_csv
from fedbridge.data.tables.schema import Reading, agree

FOLDER = Path(__file__).parent
READING = Reading(label_column="sepsis")


def main() -> None:
    """Describe, agree, write."""
    files = sorted((FOLDER / "data").glob("*.csv"))
    described = {file.stem: describe_csv(file, file.stem, READING).summary for file in files}
    schema, notes = agree(described, READING)
    (FOLDER / "flower_hospitals" / "schema.json").write_text(schema.to_json() + "\n")
    print(f"{len(described)} departments agree on {', '.join(schema.kinds)}")
    for note in notes:
        print(note)


if __name__ == "__main__":
    main()
