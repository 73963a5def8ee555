"""Writes the tables of results into docs/results.md: `python docs/make_results.py`.

They are made of the committed runs in `docs/results/`, a file for each experiment and protocol, and
stand between `<!-- results: NAME PROTOCOL -->` and `<!-- end -->`; `NAME PROTOCOL quick` has the
tasks of the quick form. Figures are drawn beside the runs. `tests/test_docs.py` holds document and
runs equal.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import TYPE_CHECKING

from fedbridge.data.protocols import FAIR
from fedbridge.experiments.page import command, differences, figure
from fedbridge.experiments.tables import cost_table, gain_tables, result_tables
from fedbridge.report import figure_sheet
from fedbridge.report.tables import Column, Table, to_markdown
from fedbridge.report.text import counted
from fedbridge.workflows.reproduce import ReproductionPlan, load_experiment, reproduce

if TYPE_CHECKING:
    from fedbridge.experiments.catalogue import Experiment
    from fedbridge.experiments.reproduction import Reproduction

DOCUMENT = Path(__file__).parent / "results.md"
RESULTS = DOCUMENT.parent / "results"
PART = re.compile(
    r"(<!-- results: ([\w-]+) (\w+)( quick)? -->\n).*?(<!-- end -->)", flags=re.DOTALL
)
WIDTH = 99
NEAR = 2.0
"""Points of accuracy within which ours and the paper's are called the same."""
DRAWN = ("map", "curves")
"""Forms of experiments whose figure says more than their table."""


def file_of(name: str, protocol: str, *, quick: bool) -> Path:
    """Where the runs of an experiment are."""
    return RESULTS / f"{name}-{protocol}{'-quick' * quick}.json"


def committed(name: str, protocol: str, *, quick: bool) -> Reproduction:
    """What the committed runs of an experiment are; settings without any are left out."""
    file = file_of(name, protocol, quick=quick)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    seeds = sorted({line["seed"] for line in lines})
    experiment = load_experiment(name)
    experiment = experiment.in_quick_form() if quick else experiment
    usual = ReproductionPlan.of(experiment, protocol, seeds, None, quick=False).experiment.rounds
    most = max(line.get("rounds", 0) for line in lines)
    rounds = None if any(line.get("rounds") == usual for line in lines) else most
    done = {line["column"] for line in lines}
    keys = [column.key for column in experiment.columns if not column.mean]
    columns = None if done.issuperset(keys) else _patterns(experiment, done)
    with TemporaryDirectory() as room:
        return reproduce(
            name,
            protocol,
            seeds,
            rounds,
            quick=quick,
            columns=columns,
            out=Path(room) / name,
            results=file,
            finished=True,
        )


def _patterns(experiment: Experiment, done: set[str]) -> list[str]:
    """What `--columns` takes for these settings: a whole group by its name, else each."""
    found: dict[str, None] = {}
    for column in experiment.columns:
        own = {c.key for c in experiment.columns if c.group == column.group and not c.mean}
        if column.key in done:
            whole = column.group and own <= done
            found[f"{escape(column.group)}:*" if whole else escape(column.key)] = None
    return [*found]


def section(name: str, protocol: str, *, quick: bool) -> str:
    """Command, tables and figure of an experiment under a protocol, as Markdown."""
    found = committed(name, protocol, quick=quick)
    short = {"map": wins, "cost": cost_table}.get(found.experiment.form)
    tables = [short(found)] if short else [*result_tables(found), *gain_tables(found)]
    shown = f"--finished --results docs/results/{file_of(name, protocol, quick=quick).name}"
    asked = command(found).replace(" --protocol", " \\\n  --protocol")
    if max(map(len, asked.splitlines())) > WIDTH:
        asked = asked.replace(" --columns", " \\\n  --columns")
    parts = [f"```bash\n{asked} \\\n  {shown}\n```\n", f"{account(found)}\n"]
    for table in tables:
        parts += [f"{fill(table.caption, WIDTH)}:\n", to_markdown(table)]
    if found.experiment.form in DRAWN:
        words = f"{found.experiment.title}, protocol {protocol}"
        drawn = file_of(name, protocol, quick=quick).with_suffix(".svg")
        parts.append(f"![{words}](results/{drawn.name})\n")
    return "\n".join(parts)


def account(found: Reproduction) -> str:
    """Version, seeds and rounds, how near to the paper, and what is not there."""
    versions = sorted({str(one.summary["version"]) for one in found.finished if one.summary})
    counts = Counter(one.summary["rounds"] for one in found.finished if one.summary)
    rounds = " or ".join(str(count) for count in sorted(counts))
    said = f"Version {', '.join(versions)}, {counted(len(found.seeds), 'seed')}, {rounds} rounds"
    apart = [abs(value) for values in differences(found).values() for value in values]
    if apart and found.protocol != FAIR and found.experiment.score == "accuracy":
        near = sum(value <= NEAR for value in apart)
        said += f";\n{near} of the paper's {len(apart)} numbers within {NEAR:g} points"
    said += f";\n{found.open} of {len(found.outcomes)} runs are not done" if found.open else ""
    every = sum(not column.mean for column in load_experiment(found.experiment.name).columns)
    few = sum(not column.mean for column in found.experiment.columns)
    return said + (f";\n{few} of {every} settings." if few < every else ".")


def wins(found: Reproduction) -> Table:
    """In how many cells of each map a rule wins; no number where a map does not have it."""
    experiment = found.experiment
    won = [
        Counter(found.winner(panel, column) for column in experiment.columns)
        for panel in experiment.panels
    ]
    titles = [f"{panel.label} {panel.title}" for panel in experiment.panels]
    rows = tuple(
        (
            row.label,
            *(
                count[row.label] if row.label in panel.rows else None
                for count, panel in zip(won, experiment.panels, strict=True)
            ),
        )
        for row in experiment.rows
        if any(row.label in panel.rows for panel in experiment.panels)
    )
    cells = counted(len(experiment.columns), "cell")
    columns = (Column("rule"), *(Column(title, "number", 0) for title in titles))
    return Table("wins", f"Cells of {cells} in which each rule wins", columns, rows)


def filled(text: str) -> str:
    """The document with its tables as the runs have them."""
    return PART.sub(
        lambda found: f"{found[1]}{section(found[2], found[3], quick=bool(found[4]))}{found[5]}",
        text,
    )


def main() -> None:
    """Write the document anew, and draw its figures."""
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(filled(text), encoding="utf-8")
    for _, name, protocol, quick, _ in PART.findall(text):
        if load_experiment(name).form in DRAWN:
            sheet = figure_sheet(figure(committed(name, protocol, quick=bool(quick))))
            drawn = file_of(name, protocol, quick=bool(quick)).with_suffix(".svg")
            drawn.write_text(sheet, encoding="utf-8")


if __name__ == "__main__":
    main()
