"""What differential privacy costs in accuracy: the tables of docs/deploy.md.

    python benchmarks/privacy.py heart digits fashion     # runs what is missing, prints the tables
    python benchmarks/privacy.py digits --levels record --methods fedavg,auto --clip 4
    python benchmarks/privacy.py digits --seeds 100-102 --epsilons 3 --clean span --own try.json
    python benchmarks/privacy.py --write                  # the committed cells into docs/deploy.md

The sources' rows are protected (``--who all``: the target's too). Record-level privacy trains by
gradients that tell of no single row; local privacy clips and noises what a site sends in a round.
Epsilon is that of one site after all rounds, for a delta of 1e-5. ``--clean`` lets the coordinator
treat what arrives (``CLEANERS``). Noise is drawn with fixed seeds, so that a table can be had
again. A finished run is a line of docs/privacy.json and is not run again: it can be stopped at any
time. Seeds from 100 on are for design.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy.optimize import brentq  # type: ignore[import-untyped]
from torch.nn import functional
from wire import mean_and_spread, run_over_wire

import fedbridge as fb
from fedbridge.base.files import write_atomically
from fedbridge.base.values import value_of
from fedbridge.flower.privacy import LocalPrivacy, epsilon, release
from fedbridge.runs.cell import CHANGED
from fedbridge.training.job import TARGET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from wire import Transmit

    from fedbridge.training.job import ClientResult, Job
    from fedbridge.training.trainer import Workbench

    Cleaner = Callable[[Workbench, Job, ClientResult, Tensor], Tensor]
    """A vector made of what a client has sent, and of the model that its work started from."""

DELTA = 1e-5
DOCS = Path(__file__).parents[1] / "docs"
CELLS, DOCUMENT = DOCS / "privacy.json", DOCS / "deploy.md"
PART = re.compile(r"(<!-- privacy: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
ALONE = ("target-only", "alone-auto")
"""What needs no source is the same whatever protects them."""

NONE, RECORD, LOCAL = "none", "record", "local"
LEVELS: Mapping[str, tuple[float | None, ...]] = {
    NONE: (None,),
    RECORD: (10.0, 3.0, 1.0),
    LOCAL: (1000.0, 100.0, 10.0, 3.0, 1.0),
}
"""Epsilons of every kind of privacy."""

RULES = (
    "fedavg", "source-only", "fedda", "fedgp", "fedda-auto", "fedgp-auto", "fedda-joint", "median",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """A task on which the price is measured.

    Attributes:
        task: its name, and
        data: options.
        rounds: of every run.
        seeds: of task and run.
        methods: that are compared.
        options: of every run.
        clips: of every kind of privacy.
        levels: kinds of privacy that are shown, and their epsilons.
    """

    task: str
    data: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = (*ALONE, *RULES, "auto")
    options: Mapping[str, Any] = field(default_factory=dict)
    clips: Mapping[str, float] = field(default_factory=lambda: {RECORD: 1.0})
    levels: Mapping[str, tuple[float | None, ...]] = field(default_factory=lambda: LEVELS)


STUDIES = {
    "heart": Study("heart", {"target": "cleveland"}, clips={RECORD: 1.0, LOCAL: 0.1}),
    "heart-sgd": Study(
        "heart",
        {"target": "cleveland"},
        methods=(*ALONE, "fedavg", "auto"),
        options={"optimizer": "sgd", "lr": 0.02},
        levels={level: LEVELS[level] for level in (NONE, RECORD)},
    ),
    "digits": Study("digits-noise", clips={RECORD: 1.0, LOCAL: 0.5}),
    "fashion": Study(
        "fashion-noise",
        {"noise": 0.4, "sources": ["source 1", "source 2", "source 3"]},
        rounds=5,
        seeds=(0, 1),
        methods=(*ALONE, "fedavg", "fedda-auto", "fedgp-auto", "auto"),
        options={"batch_size": 256, "steps": 20},
        clips={RECORD: 1.0, LOCAL: 0.5},
        levels={level: LEVELS[level][-3:] for level in LEVELS},
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run: all that its accuracy depends on."""

    study: str
    level: str
    epsilon: float | None
    clip: float | None
    method: str
    seed: int
    who: str = "sources"
    clean: str = "none"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        """As the file has it: what is as usual is not said."""
        usual = {"who": "sources", "clean": "none", "options": ()}
        told = {k: v for k, v in vars(self).items() if k not in usual or v != usual[k]}
        return told | ({"options": dict(self.options)} if self.options else {})

    def run(self) -> float:
        """Its accuracy."""
        study = STUDIES[self.study]
        options = {**study.options, **dict(self.options)}
        local = None
        if self.level == RECORD:
            own = {"record_epsilon": self.epsilon, "record_clip": self.clip, "record_delta": DELTA}
            options |= {**own, "record_of": self.who}
        elif self.level == LOCAL:
            assert self.epsilon is not None
            assert self.clip is not None
            local = local_within(self.epsilon, self.clip, study.rounds)
        over = partial(protected_wire, self, local)
        task = task_of(self.study, self.seed)
        return run_over_wire(task, self.method, study.rounds, self.seed, over, **options).accuracy


@cache
def task_of(study: str, seed: int) -> fb.FederatedTask:
    """The task of a study, for a seed."""
    return fb.load_task(STUDIES[study].task, seed=seed, **STUDIES[study].data)


@cache
def local_within(most: float, clip: float, rounds: int) -> LocalPrivacy:
    """Local privacy of the least noise with which so many rounds cost an epsilon."""

    def beyond(logarithm: float) -> float:
        return epsilon(LocalPrivacy(clip, math.exp(logarithm), DELTA), rounds) - most

    return LocalPrivacy(clip, math.exp(brentq(beyond, math.log(1e-3), math.log(1e5))), DELTA)


def protected_wire(cell: Cell, local: LocalPrivacy | None, on: Workbench) -> Transmit:
    """A wire on which clients protect what they send, and the coordinator cleans what arrives."""
    generator = torch.Generator().manual_seed(cell.seed)
    spared = (TARGET,) if cell.who == "sources" else ()
    cleaner = CLEANERS[cell.clean]()

    def transmit(
        client: int, jobs: Sequence[Job], works: Sequence[ClientResult], starts: Tensor
    ) -> Sequence[ClientResult]:
        if client in spared:
            return works
        if local is not None:
            works = release(jobs, works, local, on.blocks, generator)
        return [
            replace(work, vector=cleaner(on, job, work, starts[job.slot]))
            for job, work in zip(jobs, works, strict=True)
        ]

    return transmit


def as_it_is(on: Workbench, job: Job, work: ClientResult, start: Tensor) -> Tensor:
    """What was sent."""
    return work.vector


def low_rank(on: Workbench, job: Job, work: ClientResult, start: Tensor) -> Tensor:
    """A vector without the singular values that noise of the known size alone would have.

    Those of an (a, b) matrix of noise with deviation ``s`` stay below about ``s (√a + √b)``.
    """
    if work.outcome.added is None:
        return work.vector
    vector = work.vector.clone()
    named = [p for p in on.model.parameters() if p.requires_grad]
    for k, (shaped, columns) in enumerate(zip(named, on.blocks.slices(), strict=True)):
        if shaped.ndim < 2:
            continue
        matrix = vector[columns].view(len(shaped), -1)
        deviation = math.sqrt(float(work.outcome.added[k]) / matrix.numel())
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        noise = deviation * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
        vector[columns] = (left * (sizes * (sizes > noise)) @ right).reshape(-1)
    return vector


def shrunk(on: Workbench, job: Job, work: ClientResult, start: Tensor) -> Tensor:
    """Every block times ``1 − s²/‖v‖²``, never below 0, where ``s²`` is the noise (James-Stein)."""
    if work.outcome.added is None:
        return work.vector
    vector = work.vector.clone()
    for added, columns in zip(work.outcome.added, on.blocks.slices(), strict=True):
        length2 = float(vector[columns].square().sum())
        vector[columns] *= max(0.0, 1 - float(added) / length2) if length2 else 0.0
    return vector


def in_span(on: Workbench, job: Job, work: ClientResult, start: Tensor) -> Tensor:
    """The part that lies in the span of the gradients of the target's own rows, one for each."""
    on._load(start, {})
    on.model.eval()
    site, rows = on.sites[TARGET], torch.arange(len(on.sites[TARGET]))
    gradients = []
    for x, y in zip(on._inputs(site, rows, 0), site.y, strict=True):
        on.model.zero_grad(set_to_none=False)
        functional.cross_entropy(on.model(x[None]), y[None]).backward()
        gradients.append(on._gradient.clone())
    basis: Tensor = torch.linalg.qr(torch.stack(gradients).T)[0]
    return torch.mv(basis, torch.mv(basis.T, work.vector))


def remembering() -> Cleaner:
    """The mean of a client's updates over rounds, each counting half as much as the next."""
    past: dict[tuple[int, str, int], Tensor] = {}

    def clean(on: Workbench, job: Job, work: ClientResult, start: Tensor) -> Tensor:
        key = job.client, job.kind, job.slot
        before = past.get(key)
        past[key] = work.vector if before is None else (before + work.vector) / 2
        return past[key]

    return clean


CLEANERS: Mapping[str, Callable[[], Cleaner]] = {
    "none": lambda: as_it_is,
    "low-rank": lambda: low_rank,
    "shrink": lambda: shrunk,
    "span": lambda: in_span,
    "mean": remembering,
}
"""What a coordinator may make of an update whose noise has a known size; with ``span`` the target
does it, since its gradients stay with it."""


class Results:
    """Finished runs, a line each; the last of the files is written to.

    A run of an earlier version of its method is still shown, but run again where that is asked for.
    """

    def __init__(self, *files: Path) -> None:
        self.files = {file: self._read(file) for file in files}
        self.own = self.files[files[-1]]

    def run(self, cell: Cell) -> None:
        """Run a cell, unless it has been."""
        generation = CHANGED.get(cell.method)
        told = self._told(cell)
        if told is not None and told.get("generation") == generation:
            return
        made = {} if generation is None else {"generation": generation}
        self.own[key_of(cell.record)] = {**cell.record, **made, "accuracy": round(cell.run(), 3)}
        lines = [json.dumps(self.own[key]) for key in sorted(self.own)]
        write_atomically([*self.files][-1], "".join(f"{line}\n" for line in lines))

    def accuracy(self, cell: Cell) -> float:
        """Of a finished cell."""
        told = self._told(cell)
        if told is None:
            raise fb.FedbridgeError(
                f"Expected a finished run of {cell.record}, but there is none: run "
                f"`python benchmarks/privacy.py {cell.study}` first."
            )
        return float(told["accuracy"])

    def _told(self, cell: Cell) -> dict[str, Any] | None:
        key = key_of(cell.record)
        return next((of[key] for of in reversed(self.files.values()) if key in of), None)

    @staticmethod
    def _read(file: Path) -> dict[str, dict[str, Any]]:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return {key_of(told): told for told in map(json.loads, lines)}


def key_of(told: Mapping[str, Any]) -> str:
    """What a line is of, as text."""
    said = {name: value for name, value in told.items() if name not in ("accuracy", "generation")}
    return json.dumps(said, sort_keys=True)


@dataclass(frozen=True)
class Asked:
    """Cells of a study that make a table; None for what the study has."""

    study: str
    levels: tuple[str, ...] | None = None
    epsilons: tuple[float, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    clip: float | None = None
    who: str = "sources"
    clean: str = "none"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Methods."""
        return self.methods or STUDIES[self.study].methods

    def rows(self) -> Iterator[tuple[str, float | None]]:
        """Kinds of privacy and epsilons."""
        known = STUDIES[self.study].levels
        for level in dict.fromkeys((NONE, *(self.levels or known))):
            for most in known[level] if level == NONE else self.epsilons or known[level]:
                yield level, most

    def cells(self, level: str, most: float | None, method: str) -> list[Cell]:
        """One for every seed."""
        study = STUDIES[self.study]
        if method in ALONE and self.who == "sources":
            level, most = NONE, None
        plain = level == NONE
        return [
            Cell(
                self.study,
                level,
                most,
                None if plain else self.clip or study.clips[level],
                method,
                seed,
                "sources" if plain else self.who,
                "none" if plain else self.clean,
                self.options,
            )
            for seed in self.seeds or study.seeds
        ]

    def every(self) -> Iterator[Cell]:
        """All cells, seed by seed, so that what is there when it is stopped makes a table."""
        rows = [self.cells(*row, method) for row in self.rows() for method in self.columns]
        for of_seed in zip(*rows, strict=True):
            yield from dict.fromkeys(of_seed)


def table(asked: Asked, results: Results) -> str:
    """Accuracy, mean (standard deviation), in Markdown."""
    shown = " | ".join(f"`{method}`" for method in asked.columns)
    lines = [f"| protected | epsilon | {shown} |", f"|---|---:|{'---:|' * len(asked.columns)}"]
    for level, most in asked.rows():
        cells = [
            mean_and_spread([results.accuracy(one) for one in asked.cells(level, most, method)])
            for method in asked.columns
        ]
        told = "nothing | –" if level == NONE else f"{level} | {most:g}"
        lines.append(f"| {told} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """The document with its tables as the committed cells have them."""
    results = Results(CELLS)
    return PART.sub(lambda found: f"{found[1]}{table(Asked(found[2]), results)}{found[3]}", text)


def main() -> None:
    """Run what is missing and print tables, or write those of the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--write", action="store_true", help="the tables of docs/deploy.md")
    parser.add_argument("--levels", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--epsilons", type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--seeds", metavar="FIRST-LAST")
    parser.add_argument("--clip", type=float)
    parser.add_argument("--who", choices=("all", "sources"), default="sources")
    parser.add_argument("--clean", choices=tuple(CLEANERS), default="none")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--own", type=Path, default=CELLS, help="file for what is run now")
    given = parser.parse_args()
    seeds = None
    if given.seeds:
        first, _, last = given.seeds.partition("-")
        seeds = tuple(range(int(first), int(last or first) + 1))
    pairs = (part.split("=", 1) for part in given.set)
    options = tuple((name, value_of(name, value)) for name, value in pairs)
    ladder = given.levels, given.epsilons, given.methods, seeds
    results = Results(CELLS, given.own)
    for study in given.studies:
        asked = Asked(study, *ladder, given.clip, given.who, given.clean, options)
        for cell in asked.every():
            results.run(cell)
        print(f"\n{study}\n\n{table(asked, results)}", flush=True)
    if given.write:
        write_atomically(DOCUMENT, filled(DOCUMENT.read_text("utf-8")))


if __name__ == "__main__":
    main()
