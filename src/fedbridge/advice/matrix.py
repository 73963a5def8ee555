"""Who gains from whom: the advice of every site that was the target in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbridge.advice.verdict import listed, percent, relative, with_range
from fedbridge.base.files import to_json, write_atomically
from fedbridge.report.page import REPORT_FILE, Page, Section
from fedbridge.report.tables import Cell, Column, Line, Table, to_csv
from fedbridge.report.text import tag

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.advice.verdict import Advice, Joining, Partner

FORMAT = 1
ITSELF, UNKNOWN = "·", "–"
SAID: dict[Joining, tuple[str, str, str]] = {
    "join": ("join", "gains by joining", "gain by joining"),
    "alone": ("stay alone", "can stay alone", "can stay alone"),
    "unclear": ("too thin", "cannot tell yet", "cannot tell yet"),
}
"""A decision in the table, and what is said of one site and of several."""

NOT_MEASURED = "not measured"
HOW_TO_READ = (
    "A row is a site as the target, a column a source: the part that the source has in the row's "
    "model of auto, and what its gradient says by itself (helps, far, opposed, unclear)."
)


@dataclass(frozen=True)
class Turn:
    """A site's turn as the target.

    Attributes:
        target: the site.
        advice: what it is advised; None if it was not measured.
        why: why it was not.
    """

    target: str
    advice: Advice | None
    why: str = ""


@dataclass(frozen=True)
class AdviceMatrix:
    """The advice of every site.

    Attributes:
        task: what the sites have in common.
        seed: of the measuring rounds.
        turns: one for every site.
    """

    task: str
    seed: int
    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        """Who gains, who helps, and who was not measured, in a few sentences."""
        said = []
        for decision, (_, one, many) in SAID.items():
            names = [t.target for t in self.turns if t.advice and t.advice.decision == decision]
            if names:
                said.append(f"{listed(names)} {one if len(names) == 1 else many}.")
        helped = {name: sorted(self._helped_by(name)) for name in self.sources}
        told = [f"{name} helps {listed(others)}" for name, others in helped.items() if others]
        said += [f"{'; '.join(told)}."] if told else []
        said += [f"{t.target} was {NOT_MEASURED}: {t.why}." for t in self.turns if not t.advice]
        return " ".join(said)

    @property
    def sources(self) -> list[str]:
        """Every site that was a source in some turn, the targets first."""
        named = [partner.name for turn in self.turns for partner in _partners(turn).values()]
        return list(dict.fromkeys([*(turn.target for turn in self.turns), *named]))

    def _helped_by(self, name: str) -> list[str]:
        return [
            turn.target
            for turn in self.turns
            if name in _partners(turn) and _partners(turn)[name].role == "helps"
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "format": FORMAT,
            "task": self.task,
            "seed": self.seed,
            "verdict": str(self),
            "turns": [
                {
                    "target": turn.target,
                    "advice": None if turn.advice is None else turn.advice.to_json(),
                    **({"why": turn.why} if turn.advice is None else {}),
                }
                for turn in self.turns
            ],
        }

    def gains(self) -> Table:
        """What every site gains by joining."""
        columns = (
            Column("target"),
            Column("labels", "number", digits=0),
            Column("verdict"),
            Column("gain", "number", digits=3, beside=("gain low", "gain high")),
            Column("points", "number", beside=("points error",)),
            Column("use"),
        )
        rows = tuple(self._gain(turn) for turn in self.turns)
        note = "Gain: the part of its held-out loss alone that a site saves by joining (95%)."
        return Table("gains", "What each site gains by joining", columns, rows, (note,))

    def _gain(self, turn: Turn) -> Line:
        advice = turn.advice
        if advice is None:
            return (turn.target, None, NOT_MEASURED, None, None, "")
        verdict, worth = SAID[advice.decision][0], advice.worth
        if worth is None:
            return (turn.target, advice.samples, verdict, None, None, advice.recommended)
        saved = relative(worth)
        points = worth.points if worth.of_classes else -worth.points
        unit = "" if worth.of_classes else "%"
        return (
            turn.target,
            advice.samples,
            verdict,
            Cell(saved.value, with_range(saved), beside=(saved.low, saved.high)),
            Cell(
                points,
                f"{points:+.0f} ± {worth.points_error:.0f}{unit}",
                beside=(worth.points_error,),
            ),
            advice.recommended,
        )

    def helpers(self) -> Table:
        """Who helps whom: rows are targets, columns sources."""
        names = self.sources
        rows: tuple[Line, ...] = tuple(
            (turn.target, *(_cell(turn, name) for name in names)) for turn in self.turns
        )
        columns = (Column("target"), *(Column(name, "number") for name in names))
        return Table("matrix", "Who helps whom", columns, rows, (HOW_TO_READ,))

    def pairs(self) -> Table:
        """A line per target and source, with all numbers, for a spreadsheet."""
        columns = (
            *(Column("target"), Column("source"), Column("rows", "number", digits=0)),
            *(Column("share", "number", digits=3), Column("role")),
            Column("distance2/noise", "number", digits=3, beside=("ratio low", "ratio high")),
            Column("cosine", "number", digits=3, beside=("cosine low", "cosine high")),
        )
        rows = tuple(
            (
                turn.target,
                partner.name,
                partner.samples,
                partner.share,
                partner.role,
                Cell(partner.ratio.value, beside=(partner.ratio.low, partner.ratio.high)),
                Cell(partner.cosine.value, beside=(partner.cosine.low, partner.cosine.high)),
            )
            for turn in self.turns
            for partner in _partners(turn).values()
        )
        return Table("pairs", "Every pair", columns, rows)

    def write(self, folder: Path) -> Path:
        """Page, tables and all numbers; where the page is."""
        write_atomically(folder / "matrix.json", to_json(self.to_json(), indent=1) + "\n")
        for table in (self.gains(), self.helpers(), self.pairs()):
            write_atomically(folder / f"{table.name}.csv", to_csv(table))
        write_atomically(folder / REPORT_FILE, self.page().html())
        return folder / REPORT_FILE

    def page(self) -> Page:
        """The tables and the verdicts as a page."""
        verdicts = tag(
            "ul",
            *(
                tag("li", tag("strong", f"{turn.target}: "), turn.advice.verdict)
                for turn in self.turns
                if turn.advice is not None
            ),
        )
        tables = (self.helpers(), self.gains())
        return Page(
            f"Who gains from whom: {self.task}",
            tag("p", str(self)),
            (
                *(
                    Section(table.caption, (table, *(tag("p", note) for note in table.notes)))
                    for table in tables
                ),
                Section("Verdicts", (verdicts,)),
            ),
        )


def _partners(turn: Turn) -> dict[str, Partner]:
    return {} if turn.advice is None else {p.name: p for p in turn.advice.partners}


def _cell(turn: Turn, name: str) -> Cell:
    if name == turn.target:
        return Cell(None, ITSELF)
    partner = _partners(turn).get(name)
    if partner is None:
        return Cell(None, UNKNOWN)
    share = "" if partner.share is None else f"{percent(partner.share)} "
    return Cell(partner.share, f"{share}{partner.role}")
