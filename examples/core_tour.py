"""Every aggregation rule at work on a small synthetic problem: ``make demo``.

A target with little data (a noisy gradient) meets four sources: a near one, one in the right
direction but with another scale, a far one, and one that pulls the other way. The truth is known
here, so the table can show what nobody sees in practice: how wrong every rule's update is.
"""

from __future__ import annotations

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import fedbridge as fb
from fedbridge import theory

SOURCES = ("near", "scaled", "far", "opposed")
SEED, PARAMETERS, NOISE, BATCHES, DRAWS = 7, 40, 1.0, 8, 300


def main() -> None:
    """Build the problem, let every rule decide, and show it."""
    console = Console()
    problem = make_problem()
    console.print(
        f"\n[bold]One round, {len(SOURCES)} sources, {PARAMETERS} parameters.[/bold] "
        f"The target's update has squared error sigma^2 = {problem.sigma2:.2f}; "
        f"its true gradient has squared length {float(problem.target.square().sum()):.2f}.\n"
    )
    batches = problem.draw(BATCHES, torch.Generator().manual_seed(SEED))
    console.print(what_the_target_sees(problem, batches))
    table, errors = every_rule(problem, batches)
    console.print(table)
    console.print(in_plain_words(errors))


def make_problem() -> theory.Problem:
    """Four sources around a true gradient of length 1."""
    generator = torch.Generator().manual_seed(SEED)

    def direction() -> torch.Tensor:
        drawn = torch.randn(PARAMETERS, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(drawn, dim=0)

    truth = direction()
    sources = torch.stack(
        [
            truth + 0.4 * direction(),
            3.0 * (truth + 0.3 * direction()),
            truth + 2.0 * direction(),
            -truth + 0.5 * direction(),
        ]
    )
    return theory.Problem(truth, sources, NOISE)


def what_the_target_sees(problem: theory.Problem, batches: torch.Tensor) -> Table:
    """Estimates from the target's batches beside the truth."""
    seen = fb.estimate(batches, problem.sources)
    table = Table(
        title=f"What {BATCHES} batches tell about every source (truth in brackets)",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("source")
    for heading in ("distance d^2", "off its line", "FedDA_Auto beta", "FedGP_Auto beta"):
        table.add_column(heading, justify="right")
    betas = [fb.auto_beta("fedda", seen), fb.auto_beta("fedgp", seen)]
    for index, name in enumerate(SOURCES):
        table.add_row(
            name,
            f"{seen.d2[index]:.2f} ({problem.d2[index]:.2f})",
            f"{seen.tau2_d2[index]:.2f} ({problem.tau2_d2[index]:.2f})",
            *(f"{beta[index]:.2f}" for beta in betas),
        )
    table.caption = f"noise sigma^2: {seen.sigma2:.2f} ({problem.sigma2:.2f})"
    return table


def every_rule(problem: theory.Problem, batches: torch.Tensor) -> tuple[Table, dict[str, float]]:
    """The decision of every rule in this round, and its error over many rounds."""
    target = batches.mean(0)
    table = Table(
        title=f"Every rule: this round's mixture, and its Delta error ({DRAWS} draws)",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("rule", no_wrap=True)
    for heading in ("target", *SOURCES, "length", "Delta error"):
        table.add_column(heading, justify="right", no_wrap=True)
    _, noise = fb.measure_noise(batches, problem.sources, fb.Blocks.whole(PARAMETERS))
    geometry = fb.measure(
        target, problem.sources, fb.Blocks.whole(PARAMETERS), noise=noise, batches=BATCHES
    )
    errors: dict[str, float] = {}
    for name in fb.rules.names():
        rule = fb.rules.get(name)
        update = fb.aggregate(rule, target, problem.sources, batches=batches)
        error = theory.delta_error(rule, problem, batches=BATCHES, draws=DRAWS, seed=SEED)
        errors[name] = error.mean
        weights = ["-"] * (len(SOURCES) + 1)
        if isinstance(rule, fb.rules.Rule):
            mix = rule(geometry)
            weights = [f"{w:.2f}" for w in (mix.target[0], *mix.sources[0])]
        table.add_row(
            name,
            *weights,
            f"{float(update.norm()):.2f}",
            f"{error.mean:.3f} ± {2 * error.standard_error:.3f}",
        )
    return table, errors


def in_plain_words(errors: dict[str, float]) -> str:
    """What the table says."""
    best = min(errors, key=errors.__getitem__)
    alone = errors["target-only"]
    return (
        f"\nTraining alone errs by {alone:.2f}. [bold]{best}[/bold] errs least, by "
        f"{errors[best]:.2f}: it cuts the error of the update by {1 - errors[best] / alone:.0%}. "
        f"Taking all sources as they are (source-only) errs by {errors['source-only']:.2f}.\n"
    )


if __name__ == "__main__":
    main()
