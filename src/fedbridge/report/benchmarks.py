"""What was measured of fedbridge's costs, as tables, as a picture, and in a document."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import OptionError
from fedbridge.base.files import read_text, write_atomically
from fedbridge.report import figure_sheet
from fedbridge.report.charts import PALETTE
from fedbridge.report.charts.plots import Series, line_chart
from fedbridge.report.tables import Cell, Column, Table, to_markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fedbridge.report.charts import Chart

PARTS = ("rules", "growth", "round", "flower", "many", "methods")
MARK = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
IMAGE = Path("images", "growth.svg")
"""Where the growth curves are written, beside a document."""


@dataclass
class Benchmarks:
    """What was measured: rows by part, as ``--json`` prints them."""

    machine: dict[str, Any] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)
    round: list[dict[str, Any]] = field(default_factory=list)
    flower: list[dict[str, Any]] = field(default_factory=list)
    many: list[dict[str, Any]] = field(default_factory=list)
    methods: list[dict[str, Any]] = field(default_factory=list)

    def tables(self) -> list[Table]:
        """What was measured, as tables."""
        return [TABLES[part](rows) for part in PARTS if (rows := getattr(self, part))]

    def charts(self) -> list[Chart]:
        """Time over sources and over the model's size, as multiples of the bare passes."""
        found = [
            _curve(self.growth, "sources", "sources", "Sources, the updates as large together"),
            _curve(self.growth, "length", "million entries", "Length of the model, 10 sources"),
        ]
        return [chart for chart in found if chart is not None]


def write(found: Benchmarks, document: Path) -> list[Path]:
    """Put tables and picture where a document has marks for them: ``<!-- bench: rules -->``."""
    text = read_text(document)
    known = {table.name: to_markdown(table).rstrip("\n") + "\n" for table in found.tables()}
    if found.machine:
        known["machine"] = _machine(found.machine) + "\n"
    if not MARK.search(text):
        raise OptionError(
            f"Expected marks such as '<!-- bench: rules -->' and '<!-- end -->' in {document}, "
            f"but it has none."
        )

    def filled(mark: re.Match[str]) -> str:
        return f"{mark[1]}{known[mark[2]]}{mark[3]}" if mark[2] in known else mark[0]

    written = [document]
    write_atomically(document, MARK.sub(filled, text))
    charts = found.charts()
    if charts and str(IMAGE) in text:
        written.append(document.parent / IMAGE)
        write_atomically(written[-1], figure_sheet(charts, columns=2))
    return written


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores of {machine['processor']}, Python {machine['python']}, torch "
        f"{machine['torch']}{' (`--quick`)' if machine['quick'] else ''}."
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _rules_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        "rules",
        "Aggregation over two bare passes",
        (
            Column("rule", "code"),
            Column("time / two passes", "number", digits=2),
            Column("extra memory, %", "number"),
        ),
        tuple((r["rule"], r["ratio"], _percent(r["extra_memory"])) for r in rows),
    )


def _growth_table(rows: list[dict[str, Any]]) -> Table:
    shapes = list(dict.fromkeys((row["sources"], row["length"]) for row in rows))
    by_rule: dict[str, dict[tuple[int, int], Cell]] = {row["rule"]: {} for row in rows}
    for row in rows:
        extra = _percent(row["extra_memory"])
        text = f"{row['ratio']:.1f}" + ("" if extra is None else f" ({extra:.1f}%)")
        by_rule[row["rule"]][row["sources"], row["length"]] = Cell(row["ratio"], text)
    titles = [Column(f"{n} × {m:,}", "number") for n, m in shapes]
    return Table(
        "growth",
        "Aggregation over two bare passes (and extra memory), by sources and entries",
        (Column("time / two passes", "code"), *titles),
        tuple((rule, *(seen.get(s) for s in shapes)) for rule, seen in by_rule.items()),
    )


def _turns_table(
    rows: list[dict[str, Any]], name: str, caption: str, titles: tuple[str, str, str], other: str
) -> Table:
    """Rounds of ours and of something else, in turn."""
    return Table(
        name,
        caption,
        (Column("method", "code"), *(Column(title, "number", digits=2) for title in titles)),
        tuple((r["method"], r["seconds"], r[other], r["ratio"]) for r in rows),
    )


def _many_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        "many",
        "A round of very many sources",
        (
            Column("method", "code"),
            Column("taking part, %", "number", digits=0),
            Column("round, s", "number"),
            Column("updates, MB", "number", digits=0),
            Column("peak of memory, MB", "number", digits=0),
        ),
        tuple(
            (
                r["method"],
                100 * r["participation"],
                r["seconds"],
                r["updates"] / 1e6,
                r["memory"] / 1e6,
            )
            for r in rows
        ),
    )


def _methods_table(rows: list[dict[str, Any]]) -> Table:
    def scaled(row: dict[str, Any], name: str, factor: float) -> float | None:
        return factor * row[name] if name in row else None

    return Table(
        "methods",
        "What a round costs",
        (
            Column("method", "code"),
            Column("ms per round", "number", digits=0),
            Column("against fedavg", "number"),
            Column("KB up", "number", digits=0),
            Column("KB down", "number", digits=0),
            Column("MB of memory", "number", digits=0),
            Column("needs"),
        ),
        tuple(
            (
                row["method"],
                scaled(row, "seconds", 1e3),
                row.get("ratio"),
                scaled(row, "bytes_up", 1e-3),
                scaled(row, "bytes_down", 1e-3),
                scaled(row, "memory", 1e-6),
                row.get("error") or row["needs"] or None,
            )
            for row in rows
        ),
    )


def _curve(rows: list[dict[str, Any]], over: str, label: str, title: str) -> Chart | None:
    unit = 1e6 if over == "length" else 1
    lines = [
        Series(
            rule,
            tuple(
                (r[over] / unit, r["ratio"]) for r in rows if (r["rule"], r["over"]) == (rule, over)
            ),
            style,
        )
        for rule, style in zip(dict.fromkeys(r["rule"] for r in rows), PALETTE, strict=False)
    ]
    return line_chart(
        f"growth-{over}",
        title,
        lines,
        x_label=label,
        y_label="time over two bare passes",
        whole=False,
        from_zero=True,
    )


TABLES: Mapping[str, Callable[[list[dict[str, Any]]], Table]] = {
    "rules": _rules_table,
    "growth": _growth_table,
    "round": partial(
        _turns_table,
        name="round",
        caption="A round over the bare loop",
        titles=("round, s", "bare loop, s", "ratio"),
        other="bare",
    ),
    "flower": partial(
        _turns_table,
        name="flower",
        caption="A round in Flower's simulation over ours",
        titles=("fedbridge, s", "Flower, s", "Flower / fedbridge"),
        other="flower",
    ),
    "many": _many_table,
    "methods": _methods_table,
}
