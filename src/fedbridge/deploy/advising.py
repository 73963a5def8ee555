"""``deploy advise``: the measuring rounds of advice over the link, for one target or for every one.

What leaves a site for it is said before anything does (``leaving``). A site's role is what its own
``site.toml`` says; where every site is to be the target in turn, only those take part in another
role whose ``site.toml`` allows it (``matrix = true``), and the others are named.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbridge.advice.advise import advise_from_run
from fedbridge.advice.matrix import AdviceMatrix, Turn
from fedbridge.advice.measure import ADVICE, AFTER, SKETCH_SIZE, SOURCE_PARTS
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import parse_json, to_json, write_atomically
from fedbridge.deploy.approval import hash_of_app
from fedbridge.deploy.description import read_description
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.running import follow_run, start_run
from fedbridge.federation.settings import NAMES
from fedbridge.flower.programs import app_settings
from fedbridge.report.tables import Column, Line, Table
from fedbridge.runs.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from fedbridge.advice.verdict import Advice
    from fedbridge.deploy.folders import Deployment, DeploymentPlan, SiteSettings
    from fedbridge.flower.options import ConfigValue

NOT_ALLOWED = (
    "its description does not allow it to be the target: it writes `matrix = true` into its "
    "site.toml, runs `fedbridge deploy check .` and sends its description.json again"
)


@dataclass(frozen=True)
class AdviceOptions:
    """How advice is measured over a link.

    Attributes:
        after: rounds of ``auto``.
        labels: labelled rows that a target uses; None for as many as the plan says.
        samples: numbers of labelled samples to look ahead to; None for the usual ones.
    """

    after: int = AFTER
    labels: int | None = None
    samples: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.after < 1:
            raise OptionError("Expected at least one round (--after) over a network, but got 0.")

    def config(self, agreed: Mapping[str, ConfigValue], turn: PlannedTurn) -> dict[str, Any]:
        """What the run is told otherwise than the app's own settings, which were ``agreed``."""
        ahead = {} if self.samples is None else {"samples": list(self.samples)}
        own = {"sketch_size": SKETCH_SIZE, "after": self.after, **ahead}
        options = json.loads(str(agreed["options"]))
        of_run = {name: value for name, value in options.items() if name in NAMES}
        return {
            "method": ADVICE,
            "rounds": self.after,
            "target": turn.target,
            "sites": ",".join(turn.sources),
            "options": json.dumps({**of_run, **own}),
            "n-target": agreed["n-target"] if self.labels is None else self.labels,
        }


@dataclass(frozen=True)
class PlannedTurn:
    """A site as the target, and who its sources are; or why it is not to be."""

    target: str
    sources: tuple[str, ...] = ()
    why: str = ""

    @classmethod
    def of_app(cls, agreed: Mapping[str, ConfigValue]) -> PlannedTurn:
        """That of the target that an app's own settings name."""
        return cls(str(agreed["target"]), tuple(str(agreed["sites"]).split(",")))


def approvals(
    app: Path, turns: Sequence[PlannedTurn] = (), options: AdviceOptions | None = None
) -> list[str]:
    """Hashes of all that a site is asked for: of the run of an app, and of these turns of advice.

    Advice is a run of its own, with another method: it has a hash of its own, so that who approves
    the one has not approved the other. Without ``turns`` it is the usual one.
    """
    agreed, how = app_settings(app), options or AdviceOptions()
    told = [how.config(agreed, turn) for turn in turns or [PlannedTurn.of_app(agreed)]]
    return [hash_of_app(app), *(hash_of_app(app, one) for one in told)]


def planned_turns(
    deployment: Deployment, plan: DeploymentPlan, *, matrix: bool
) -> list[PlannedTurn]:
    """The turn of the plan's target, or that of every site that allows it."""
    if not matrix:
        return [PlannedTurn(plan.target, plan.sources)]
    willing = {name: _is_willing(deployment, name) for name in plan.sites}
    turns = []
    for name in (*plan.sources, plan.target):
        if name == plan.target:
            turns.append(PlannedTurn(name, plan.sources))
        elif not willing[name]:
            turns.append(PlannedTurn(name, why=NOT_ALLOWED))
        else:
            others = (s for s in plan.sites if s != name and (s != plan.target or willing[s]))
            turns.append(PlannedTurn(name, tuple(others)))
    return [t if t.sources or t.why else PlannedTurn(t.target, why=NO_SOURCE) for t in turns]


NO_SOURCE = "no other site may be its source: the plan's target allows no other role"


def _is_willing(deployment: Deployment, name: str) -> bool:
    """Whether a site's description says that it takes part in other roles."""
    file = deployment.site(name).description
    try:
        return file.exists() and read_description(file).matrix
    except FedbridgeError:
        return False


def advise_over_link(
    deployment: Deployment,
    plan: DeploymentPlan,
    turn: PlannedTurn,
    options: AdviceOptions,
    say: Callable[[str], object],
    *,
    resume: bool,
) -> Advice:
    """Measure over the link for one target.

    With ``resume`` advice that was asked for in the same words is kept, and so are its rounds.
    """
    out = deployment.advice / turn.target
    config = {**options.config(app_settings(deployment.app), turn), "out": str(out)}
    asked = out.with_suffix(".json")
    if not (resume and asked.exists() and parse_json(asked.read_text("utf-8")) == config):
        shutil.rmtree(out, ignore_errors=True)
        write_atomically(asked, to_json(config, indent=1) + "\n")
    if RunFolder(out).summary() is None:
        run_id = start_run(deployment, plan, say, config)
        state = follow_run(deployment, plan, run_id, say)
        if state.status != "completed":
            fate = state.details or ("no reason given" if state.finished else "it goes on alone")
            raise DeploymentError(
                f"Expected the measuring rounds to be completed, but run {run_id} is "
                f"{state.status} ({fate.strip()}): correct that, and type the same with --resume."
            )
    return advise_from_run(out)


def advise_all(
    deployment: Deployment,
    plan: DeploymentPlan,
    options: AdviceOptions,
    say: Callable[[str], object],
    *,
    resume: bool,
) -> AdviceMatrix:
    """Every site that allows it the target in turn; the others are named."""
    turns = []
    for turn in planned_turns(deployment, plan, matrix=True):
        if turn.why:
            turns.append(Turn(turn.target, None, turn.why))
            continue
        say(f"{turn.target} as the target, with {', '.join(turn.sources)}\n")
        try:
            found = advise_over_link(deployment, plan, turn, options, say, resume=resume)
            turns.append(Turn(turn.target, found))
        except DeploymentError as error:
            turns.append(Turn(turn.target, None, str(error).rstrip(".")))
    if all(turn.advice is None for turn in turns):
        said = "; ".join(f"{turn.target}: {turn.why}" for turn in turns)
        raise DeploymentError(f"No site could be measured; {said}.")
    return AdviceMatrix(deployment.folder.name, plan.seed, tuple(turns))


EVERYBODY, COORDINATOR = "coordinator, target", "coordinator"
COLUMNS = tuple(map(Column, ("site", "role", "sends", "record", "who sees it")))
NOTHING_ELSE = (
    "Nothing else leaves: no row, no label, no prediction, no model of the target, no measure of "
    "its test rows. A site's floors and its differential privacy hold as in every run."
)
SKETCHES_STAY = (
    "A source whose site.toml does not say `advice = true` keeps its last gradient and its "
    "sketches: it takes part in the rounds, and is named as not measured."
)


def leaving(turns: Sequence[PlannedTurn], rounds: int) -> Table:
    """What leaves each site if these turns are measured in so many rounds, record by record."""
    rows: list[Line] = []
    sites = dict.fromkeys(name for turn in turns for name in (turn.target, *turn.sources))
    for name in sites:
        for turn in turns:
            if turn.target == name and turn.why:
                rows.append((name, "target", f"nothing: {turn.why}", "", ""))
            elif turn.target == name:
                rows += [(name, "target", *line) for line in from_target(rounds)]
        helped = [turn.target for turn in turns if name in turn.sources]
        if helped:
            role = f"source for {', '.join(helped)}"
            rows += [(name, role, *line) for line in from_source(rounds)]
    caption = "What leaves a site for this advice"
    return Table("leaving", caption, COLUMNS, tuple(rows), (NOTHING_ELSE, SKETCHES_STAY))


def leaving_here(settings: SiteSettings, rounds: int) -> Table:
    """What leaves one site, by its own settings."""
    lines = {"source": from_source(rounds), "target": from_target(rounds)}
    if not settings.advice:
        lines["source"] = [line for line in lines["source"] if line[2] != EVERYBODY]
    other = "source" if settings.role == "target" else "target"
    rows: list[Line] = [(settings.site, settings.role, *line) for line in lines[settings.role]]
    if settings.matrix:
        rows += [(settings.site, f"{other}, in turn", *line) for line in lines[other]]
    else:
        kept = "nothing: site.toml does not say `matrix = true`"
        rows.append((settings.site, other, kept, "", ""))
    caption = "What leaves this site for advice"
    return Table("leaving", caption, COLUMNS, tuple(rows), (NOTHING_ELSE,))


HELLO = ("its name, role, numbers of rows, shape of a row, names of classes", "site, hello")


def from_source(rounds: int) -> list[tuple[str, str, str]]:
    """What a source sends: what, in which record, and who sees it."""
    sketches = (
        f"once its gradient in up to {SOURCE_PARTS} batches, as sketches of 2 x {SKETCH_SIZE} "
        f"numbers per tensor (smaller tensors as they are)"
    )
    return [
        (*HELLO, COORDINATOR),
        (
            f"{rounds} times its update of the model, with rows, steps, learning rate, loss",
            "update-K, buffers-K, metrics-K",
            COORDINATOR,
        ),
        (
            f"up to {len(_probed(rounds))} times its mean gradient and how noisy that is",
            "update-K, noise-K, metrics-K",
            COORDINATOR,
        ),
        (sketches, "update-K, noise-K, metrics-K", EVERYBODY),
    ]


def from_target(rounds: int) -> list[tuple[str, str, str]]:
    """What the target sends, in the same way."""
    gradient = (
        f"up to {len(_probed(rounds)) + 1} times its mean gradient over all labelled rows, and how "
        f"noisy that is"
    )
    choice = (
        f"{rounds} times its choice: held-out losses and weights of its kinds of models, and what "
        f"joining is worth"
    )
    found = "once noise, distances and angles of the sources' gradients, and errors of rules"
    return [
        (*HELLO, COORDINATOR),
        (gradient, "update-K, noise-K, metrics-K", COORDINATOR),
        (choice, "site, metrics", COORDINATOR),
        (found, "site, gradients", COORDINATOR),
    ]


def _probed(rounds: int) -> list[int]:
    """Rounds in which ``auto`` asks for gradients."""
    return [number for number in range(1, rounds + 1) if number & (number - 1) == 0]
