"""The target's candidates: what can be made of the sources' model and a few labels, judged fairly.

The sources' model (a *body*, with outputs ``z`` and features ``φ`` that go into its last layer) has
never seen a label of the target. So everything that the target makes of it can be cross-validated
at the target alone, exactly and cheaply:

    led             z                                  the sources' model as it is
    recalibrated    a z + c                            a in {−1, ½, 1}; up to 60 labels also 3
    head            a z + V φ                          a in {0, ½, 1}: the last layer fitted anew
    inputs          a z + U x                          a in {½, 1}: beside a linear model of inputs
    linearised      a z + J δ                          a in {0, 1}: all layers move a little
    alone           U x                                no source has a part in it
    fine-tuned      the network trained on, or half of the way
    alone, network  the network trained from its beginning

``c``, ``V``, ``U`` and ``δ`` are ridge fits (``ridge``) of several strengths ``λ``. A network is
trained by the run's own optimiser at two learning rates and for several numbers of steps; where
sources have little work themselves, at one rate and for one number. The slope of 3 is for inputs
that say less at the target than at the sources, as pale or blurred images do: their model is right
there and far too unsure. With more labels what is fitted does as well, and better.

**Names.** A target may call the classes by other names than the sources do (another coding, two
names exchanged). A permutation ``π`` of the outputs is no more than that, and the likeliest one,

    argmax over π of Σ_i w_i z_i[π(y_i)] + #{k : π(k) = k},

is an assignment problem (the softmax has the same denominator for every ``π``), in which a name
that stays counts as one nat. Judged by rows that had no part in it, the outputs in this order must
be clearly better than ``z``, ``−z`` and nothing at all, and no worse than the target's own linear
models (where images stand on their heads a 6 is a 9, and hardly anything else is right); half and
twice of the outputs are tried, too. Then the body is that of the other names in everything that
follows. (Of two classes ``−z`` is the other name.)

**Cross-validation.** Up to 20 labels every row is held out by itself, up to 60 there are ten folds,
beyond that and for networks five (three where they are trained in the light form). A replica takes
as many steps as the model that it stands for, and its rows are weighted by ``n_c / n_c^(−k)``, so
that no fold changes the shares of the classes. A row whose class has no other label says nothing
about a fit without it and has no say. With up to three labels per class a replica has lost a good
part of what the whole knows of the row's class, and looks for more shrinkage than the whole needs:
the fit to all rows is then made at ``λ / 3``, that of all layers at ``λ / 30``. Where no class has
two labels, no replica knows the class that it is asked about, and nothing that is fitted can be
judged: its loss is taken to be four fifths of that of the outputs with which it begins, which are
those of chance where it begins with nothing; and for the share of classes without any label no
better than chance. Where noise is drawn anew at every access, fits see two draws of every row and
are judged on both.

**Combination.** With ``ℓ_c`` the mean held-out loss of candidate ``c`` over ``n`` rows (for numbers
half the logarithm of the mean squared error),

    w_c ∝ π_c exp(−κ max(n, 30) ℓ_c),      κ = 0.35,

and the outputs of all candidates are added with these weights. ``π`` is uniform over families, then
within, but for four things. What the sources' model says as it is, or recalibrated, has next to
nothing that few rows could spoil. It counts ``4^(2t−1)`` times with ``t = σ² / (σ² + τ²)``, the
trust that a site deserves whose labels tell its gradient up to a noise ``σ²`` among sites that
differ by ``τ²``: four times where sources are alike, a quarter where no two agree. With up to three
labels per class it counts a quarter in any case: there replicas, which have lost one of them, make
everything that is fitted look worse than it is (where they have no say, it counts once). Refits of
an earlier body count a quarter of those of the last, and what is linearised (``Tangents``) a half.
Everything linear in ``φ`` of a body ends up in its last layer, everything linear in ``x`` in one
linear map: a ``Blend`` of at most three networks, and two more for ``J δ``; of a linear model one
linear model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from fedbridge.base.errors import ModelError
from fedbridge.data.preparing import is_redrawn
from fedbridge.methods.cross_validation import deal_folds, labelled_rows, without
from fedbridge.methods.finetune import interpolated
from fedbridge.methods.ridge import Axes, Rows, Tangents, jacobians, ridge, secant
from fedbridge.models import HeadPlace, outputs_and_head_inputs
from fedbridge.training.job import TARGET
from fedbridge.training.state import Blend, Model, State
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from fedbridge.federation.federation import Federation

LED, RECALIBRATED, HEAD, INPUTS = "led", "recalibrated", "head", "inputs"
LINEARISED = "linearised"
ALONE, TUNED, NETWORK = "alone", "fine-tuned", "alone, network"

LAST, EARLIER = "last", "earlier"
"""Bodies: the sources' model of the round, and the best of those before."""

RECALIBRATIONS = [(a, s) for a in (-1.0, 0.5, 1.0) for s in (0.3, 3.0)]
SURER = [(3.0, s) for s in (0.1, 1.0)]
HEADS = [(a, s) for a in (0.0, 0.5, 1.0) for s in (0.1, 1.0, 10.0)]
WITH_INPUTS = [(a, s) for a in (0.5, 1.0) for s in (0.1, 1.0, 10.0)]
ALL_LAYERS = [(a, s) for a in (0.0, 1.0) for s in (0.03, 0.1, 1.0)]
BY_ITSELF = [(0.0, s) for s in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)]
"""Slopes ``a`` of the body's outputs, and strengths ``λ``; surer outputs where labels are few."""

PARTS, NETWORK_BATCH = (0.5, 1.0), 16
"""How much of the way is taken, and rows in a step."""

FOLDS_OF = ((20, 0), (60, 10), (math.inf, 5))
"""Folds of up to so many labels; 0 holds out every row by itself."""

CONSTANT_OF_NUMBERS = 1000.0
"""The constant feature in fits to numbers, so that their mean is not shrunk."""

SHARPNESS, LEAST_ROWS = 0.35, 30
FEW, EASE, EASE_OF_ALL_LAYERS = 3, 1 / 3, 1 / 30
"""Labels per class that are few, and the factors of ``λ`` in fits to all rows then."""

STEPS_OF_ALL_LAYERS = 50
"""Fits to all rows are near enough after these; later ones fit what is noise."""

MOST_SLOPES, MOST_DERIVATIVES = 1_200, 50_000_000
"""Rows times outputs beyond which Jacobians are too many, and numbers in them."""

AS_LED = (LED, RECALIBRATED)
OF_LED, OF_LED_AT_FEW, OF_EARLIER, OF_LINEARISED = 4.0, 0.25, 0.25, 0.5
"""Weights before any loss is seen, of what the sources' model says nearly as it is (at most), of
refits of an earlier one, and of what is linearised; of all else 1."""

TAKEN = 0.8
"""The part of a loss that a fit is taken to leave where none can be judged."""

OWN_NAME, LEAST_NAMES = 1.0, 3
"""What it is worth, in log likelihood, that a class keeps its name; classes whose names matter."""

SLOPES_OF_NAMES = (0.5, 1.0, 2.0)
"""How sure the outputs may be made while names are compared: sureness is not what is asked."""

MOST_INPUTS = 20_000
"""Inputs with more numbers than this are for networks alone."""

MOST_FOR_SURER = 60
"""Labels up to which the body's outputs may be made surer of themselves."""

MOST_ROWS = 2_000
"""Of more labels the fits see so many: they are enough to choose."""

CLEAR, SMALL, ENOUGH_ROWS = 1.645, 0.005, 20
"""Standard errors of a clear gain, what is too small a one, and rows to tell that by."""

ANSWERS = {LED: None, HEAD: outputs_and_head_inputs, LINEARISED: jacobians}
"""What a body can be asked for: its outputs, what goes into its last layer beside them, or their
derivatives."""

DRAWS, FIRST_DRAW = 2, 1_000_000
NEGLIGIBLE = 1e-3
TUNING = 500


@dataclass(frozen=True)
class Training:
    """How networks of the target are trained.

    Attributes:
        rates: learning rates as factors of the target's own.
        stages: numbers of steps after which a network is a candidate.
        folds: parts of the rows, each held out from a replica.
    """

    rates: tuple[float, ...]
    stages: tuple[int, ...]
    folds: int


FULL, LIGHT = Training((0.3, 1.0), (30, 100, 300), 5), Training((3.0,), (120,), 3)
"""What is tried where sources have much work, and where they have little."""


@dataclass(frozen=True)
class Recipe:
    """How a candidate is made.

    Attributes:
        family: one of the eight above.
        body: name of the sources' model that it starts from; empty for none.
        slope: ``a``; of a network the learning rate's factor.
        strength: ``λ``; of a network the number of steps.
        part: of a network, how much of the way is taken.
    """

    family: str
    body: str = ""
    slope: float = 1.0
    strength: float = 0.0
    part: float = 1.0

    @property
    def kin(self) -> str:
        """The family and its body."""
        return f"{self.family}, {self.body}" if self.body else self.family

    @property
    def begins_with(self) -> float:
        """How much of its body's outputs it has before it sees a label."""
        return 1.0 if self.family == TUNED else self.slope


@dataclass(frozen=True)
class Candidate:
    """A model of the target, fitted to all its rows, and what it says of rows without having them.

    Attributes:
        recipe: how it was made.
        held_out: (rows, K) outputs for every row by a replica that never saw it; none between
            choices.
        bias: (K,) ``c``.
        head: (K, f + 1) ``V`` and its bias.
        inputs: (K, d + 1) ``U`` and its bias.
        network: the trained network.
        change: (m,) ``δ`` of the body's parameters.
        pulls: (rows, K) how the rows pull in a fit, from which one like it may start.
    """

    recipe: Recipe
    held_out: Tensor | None
    bias: Tensor | None = None
    head: Tensor | None = None
    inputs: Tensor | None = None
    network: State | None = None
    change: Tensor | None = None
    pulls: Tensor | None = None


@dataclass(frozen=True)
class Body:
    """The sources' model as the target's rows see it.

    Attributes:
        name: of it.
        state: the model.
        outputs: (rows, K).
        features: (rows, f) what goes into its last layer; None if that is not linear.
    """

    name: str
    state: State
    outputs: Tensor
    features: Tensor | None


@dataclass(frozen=True)
class Worth:
    """What joining is worth by held-out outputs: of all candidates, and of those without sources.

    Attributes:
        rows: labelled rows that it stands on.
        alone: mean held-out loss of what needs no source.
        gain: by how much the loss is lower with the sources,
        error: and the standard error of that over rows.
        points: by how many points the accuracy is higher; of numbers, by how many % the squared
            error is lower,
        points_error: and the standard error of that.
        of_classes: whether answers are classes, and losses cross-entropies.
        before: the gain at the choice before, or this one if there was none; None if not known.
    """

    rows: int
    alone: float
    gain: float
    error: float
    points: float
    points_error: float
    of_classes: bool
    before: float | None = None

    @property
    def decision(self) -> Literal["join", "alone", "unclear"]:
        """Join if the gain is clear, stay if even a large one would be small.

        Clear is what one such table in twenty would show by chance, in the loss, where more rows
        are answered rightly, too: surer answers alone are no reason to join. Small is 0.005 of
        cross-entropy, or half a percent of the squared error, and that after as many rounds again
        in which the gain goes on rising as it does: sources may not be done. Fewer than 20 rows
        keep nobody from joining.
        """
        if self.gain > CLEAR * self.error and self.points > 0:
            return "join"
        small = SMALL if self.of_classes else SMALL * self.alone
        rising = 0.0 if self.before is None else max(0.0, self.gain - self.before)
        decided = self.rows >= ENOUGH_ROWS and self.gain + rising + CLEAR * self.error < small
        return "alone" if decided else "unclear"


def in_percent(worth: Worth) -> str:
    """How the loss changes by joining, with its standard error: ``−17% ± 7``."""
    unit = 100 / max(worth.alone, 1e-30)
    return f"{-worth.gain * unit:+.0f}% ± {worth.error * unit:.0f}"


class Bench:
    """The target's labelled rows, its folds, and how candidates are fitted to them."""

    def __init__(self, federation: Federation, folds: int | None = None) -> None:
        """``folds`` parts of the rows; None for as many as suit their number."""
        self.federation = federation
        self.site, self.classes = federation.task.target, federation.task.n_classes
        self.labelled = labelled_rows(federation)
        n = len(self.labelled)
        number = folds or next(k for most, k in FOLDS_OF if n <= most) or n
        self.folds = deal_folds(federation, max(2, min(n, number))) if n > 1 else []
        self.draws = DRAWS if is_redrawn(self.site.prepare) else 1
        self.seen = self._seen()
        self.rows = self._rows()
        self.place = place_of(federation.bench.model)
        shape = federation.task.input_shape
        self.size = math.prod(shape)
        self.is_table = len(shape) == 1
        self.constant = CONSTANT_OF_NUMBERS if self.classes is None else 1.0
        self.counts = self._counting_rows()

    def _seen(self) -> Tensor:
        """The rows that fits see: all, or so many that every fold has its share."""
        if len(self.labelled) <= MOST_ROWS:
            return self.labelled
        each = MOST_ROWS // len(self.folds)
        return torch.cat([fold[:: max(1, len(fold) // each)][:each] for fold in self.folds])

    def _rows(self) -> Rows:
        fold_of = torch.zeros(len(self.seen), dtype=torch.int64)
        for k, fold in enumerate(self.folds):
            fold_of[torch.isin(self.seen, fold)] = k
        labels = self.site.y[self.seen]
        weights = torch.stack(
            [self._weights(labels, fold_of != k) for k in range(len(self.folds))]
            or [torch.ones(len(labels), dtype=torch.float64)]
        )
        return Rows(
            labels.repeat(self.draws, *([1] * (labels.ndim - 1))),
            self.classes,
            weights.repeat(1, self.draws) / self.draws,
            fold_of.repeat(self.draws),
            torch.full((len(labels) * self.draws,), 1 / self.draws, dtype=torch.float64),
            EASE if self.has_few else 1.0,
        )

    @property
    def has_few(self) -> bool:
        """Whether classes have so few labels that a replica misses the one that it lacks."""
        if self.classes is None:
            return False
        return len(self.seen) <= FEW * len(self.site.y[self.seen].unique())

    def _weights(self, labels: Tensor, kept: Tensor) -> Tensor:
        """Weights of rows in a fit without some: the shares of the classes stay what they are."""
        weights = kept.double()
        if self.classes is None:
            return weights * (len(labels) / max(1, int(kept.sum())))
        every = torch.bincount(labels, minlength=self.classes).double()
        left = torch.bincount(labels[kept], minlength=self.classes).double()
        return weights * (every / left.clamp(min=1))[labels]

    def _counting_rows(self) -> Tensor:
        """(rows,) whose held-out outputs count: those of classes with another label."""
        labels = self.rows.labels
        if self.classes is None:
            return torch.ones(len(labels), dtype=torch.bool)
        several = torch.bincount(labels, minlength=self.classes) > self.draws
        found = several[labels]
        return found if bool(found.any()) else torch.ones_like(found)

    def _every_draw(self, ask: str, state: State | None = None) -> Tensor:
        """Outputs, features, inputs or Jacobians of the rows, draw after draw.

        All but these are in float64.

        The draws are the same in all rounds, so that what was fitted in one can be compared with
        what is fitted in another; nobody is measured on them.
        """
        bench = self.federation.bench
        found = []
        with one_thread():
            for draw in range(self.draws):
                at = FIRST_DRAW + draw
                if state is None:
                    part = bench.inputs(self.site, round=at, rows=self.seen)
                else:
                    part = bench.predict(state, self.site, ANSWERS[ask], round=at, rows=self.seen)
                flat = part.double().reshape(len(self.seen), -1) if ask != LINEARISED else part
                found.append(flat)
        return torch.cat(found)

    def body(self, name: str, state: State) -> Body:
        """A model of the sources, looked at with the target's rows."""
        if self.place is None:
            return Body(name, state, self._every_draw(LED, state), None)
        number = self.rows.truth.shape[1]
        both = self._every_draw(HEAD, state)
        return Body(name, state, both[:, :number].contiguous(), both[:, number:].contiguous())

    def names(self, body: Body) -> Tensor | None:
        """(K,) which of the body's outputs is each class of the target; None: its own."""
        if self.classes is None or self.classes < LEAST_NAMES or self.place is None:
            return None
        if self.judges_no_fit or not bool(body.outputs.isfinite().all()):
            return None
        every = self._likeliest_names(body.outputs, self.rows.all)
        if torch.equal(every, torch.arange(self.classes)):
            return None
        by_fold = [self._likeliest_names(body.outputs, w) for w in self.rows.weights]
        renamed = body.outputs.gather(1, torch.stack(by_fold)[self.rows.fold_of])
        losses = self._at_best_slope(renamed, SLOPES_OF_NAMES)
        gains = self._at_best_slope(body.outputs, (-1.0, 0.0, *SLOPES_OF_NAMES)) - losses
        number = len(gains) / self.draws
        if number < 2 or float(gains.mean()) <= CLEAR * float(gains.std()) / number**0.5:
            return None
        rivals = self.losses_of(self.alone).mean(1).tolist() if self.alone else []
        return every if all(float(losses.mean()) <= rival for rival in rivals) else None

    def _at_best_slope(self, outputs: Tensor, slopes: Sequence[float]) -> Tensor:
        """(rows that count) the losses of outputs times the slope that suits them best."""
        every = (self.losses(slope * outputs) for slope in slopes)
        return min(every, key=lambda losses: float(losses.mean()))

    def _likeliest_names(self, outputs: Tensor, weights: Tensor) -> Tensor:
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

        told = self.rows.truth.T @ (weights[:, None] * outputs)
        told.diagonal().add_(OWN_NAME)
        return torch.from_numpy(linear_sum_assignment(told.numpy(), maximize=True)[1])

    def renamed(self, body: Body, names: Tensor) -> Body:
        """A body whose last layer has the target's classes in its order."""
        assert self.place is not None
        layer = (part[names] for part in self.place.read(body.state.parameters))
        state = State(self.place.put(body.state.parameters, *layer), body.state.buffers)
        return replace(body, state=state, outputs=body.outputs[:, names].contiguous())

    @cached_property
    def is_linear(self) -> bool:
        """Whether the model is a linear one of the inputs, and so is every blend of it."""
        if self.place is None:
            return False
        outputs, features = self.place.shape
        initial = self.federation.initial
        if features != self.size or initial.parameters.numel() != outputs * (features + 1):
            return False
        found = self.body(LAST, initial).features
        return found is not None and torch.equal(found, self._every_draw(INPUTS))

    @property
    def has_inputs(self) -> bool:
        """Whether a linear model of the inputs is worth trying."""
        return self.size <= MOST_INPUTS

    def refit(self, body: Body) -> list[Candidate]:
        """Everything linear that can be made of a body, with held-out outputs."""
        found = [Candidate(Recipe(LED, body.name), body.outputs)]
        surer = SURER if len(self.labelled) <= MOST_FOR_SURER else []
        recalibrations = [*RECALIBRATIONS, *surer]
        for family, grid in ((RECALIBRATED, recalibrations), (HEAD, HEADS), (INPUTS, WITH_INPUTS)):
            found += self._fitted([Recipe(family, body.name, a, s) for a, s in grid], body)
        return found

    @cached_property
    def slopes(self) -> int:
        """Rows times outputs, if the network can be linearised with so many; else 0.

        Of a linear model that would be its head, and numbers are fitted well enough without.
        """
        if self.classes is None or self.is_linear:
            return 0
        number = len(self.rows.labels) * self.classes
        parameters = self.federation.initial.parameters.numel()
        fits = number <= MOST_SLOPES and number * parameters <= MOST_DERIVATIVES
        return number if fits else 0

    def linearised(self, body: Body) -> list[Candidate]:
        """The body moved a little in all its layers; none if it cannot be derived by rows."""
        slopes = self._slopes_at(body)
        if slopes is None:
            return []
        recipes = [Recipe(LINEARISED, body.name, a, s) for a, s in ALL_LAYERS]
        given, strengths = _asked_of(recipes, body.outputs)
        rows = replace(self.rows, ease=EASE_OF_ALL_LAYERS) if self.has_few else self.rows
        with one_thread():
            axes = Tangents.at(slopes)
            whole, held_out = ridge(axes, given, strengths, rows, steps=STEPS_OF_ALL_LAYERS)
            changes = axes.layer(whole)
        assert held_out is not None
        return [
            Candidate(recipe, held_out[k], change=changes[k]) for k, recipe in enumerate(recipes)
        ]

    def _slopes_at(self, body: Body) -> Tensor | None:
        """(rows, K, m) derivatives of a body's outputs; None if they are not to be had.

        A model may work on batches alone, or do what torch has no derivative of by rows; what it
        raises then is its own.
        """
        try:
            slopes = self._every_draw(LINEARISED, body.state)
        except Exception:
            return None
        shape = (*body.outputs.shape, body.state.parameters.numel())
        return slopes if slopes.shape == shape and bool(slopes.isfinite().all()) else None

    @cached_property
    def alone(self) -> list[Candidate]:
        """Linear models of the inputs, for which nobody else is needed."""
        return self._fitted([Recipe(ALONE, "", a, s) for a, s in BY_ITSELF], None)

    def refit_from(self, body: Body, pulls: Mapping[Recipe, Tensor | None]) -> list[Candidate]:
        """Candidates of an earlier body, fitted to this one; ``pulls`` are those of their rows."""
        found = []
        for family in dict.fromkeys(recipe.family for recipe in pulls):
            recipes = [recipe for recipe in pulls if recipe.family == family]
            known = [pull for recipe in recipes if (pull := pulls[recipe]) is not None]
            if family == LED:
                found += [Candidate(recipe, None) for recipe in recipes]
            else:
                found += self._fitted(recipes, body, torch.stack(known) if known else None)
        return found

    def _fitted(
        self, recipes: Sequence[Recipe], body: Body | None, pulls: Tensor | None = None
    ) -> list[Candidate]:
        """All recipes of one family; held-out outputs only where no earlier fit is followed."""
        family = recipes[0].family
        axes = self._axes(family, body)
        if axes is None:
            return []
        outputs = torch.zeros_like(self.rows.truth) if body is None else body.outputs
        given, strengths = _asked_of(recipes, outputs)
        with one_thread():
            near = None if pulls is None else axes.pulled(pulls.double())
            whole, held_out = ridge(
                axes, given, strengths, self.rows, judge=pulls is None, near=near
            )
            layers, pulled = axes.layer(whole), axes.pulls(whole).float()
        return [
            Candidate(
                recipe,
                None if held_out is None else held_out[k],
                bias=layers[k][:, 0] if family == RECALIBRATED else None,
                head=layers[k] if family == HEAD else None,
                inputs=layers[k] if family in (INPUTS, ALONE) else None,
                pulls=pulled[k],
            )
            for k, recipe in enumerate(recipes)
        ]

    def _axes(self, family: str, body: Body | None) -> Axes | None:
        """The axes in which a family is fitted; None if it is not for this model."""
        if family == RECALIBRATED:
            fits = self.place is not None or self.has_inputs  # somewhere to put a bias
            return Axes.constant(len(self.rows.labels), self.constant) if fits else None
        if family == HEAD:
            assert body is not None
            if body.features is None or not bool(body.features.isfinite().all()):
                return None
            return Axes.of(body.features, constant=self.constant)
        return self._axes_of_inputs if self.has_inputs else None

    @cached_property
    def _axes_of_inputs(self) -> Axes:
        """The same in all rounds, whatever the body."""
        return Axes.of(self._every_draw(INPUTS), standardise=self.is_table, constant=self.constant)

    def tuned(self, family: str, name: str, start: State, how: Training) -> list[Candidate]:
        """The network trained on from a body of this name, at every rate, for so many steps."""
        federation = self.federation
        folds = deal_folds(federation, min(how.folds, len(self.labelled)))
        kept = [without(self.labelled, fold) for fold in folds]
        fold_of = torch.zeros(len(self.site), dtype=torch.int64)
        for k, fold in enumerate(folds):
            fold_of[fold] = k
        mine = fold_of[self.seen].repeat(self.draws)
        found = []
        for rate in how.rates:
            replicas: list[State | None] = [start] * (len(folds) + 1)
            before = 0
            for steps in how.stages:
                replicas = [
                    self._trained(state, rows, rate, steps - before, steps)
                    for state, rows in zip(replicas, [*kept, self.labelled], strict=True)
                ]
                before = steps
                if any(state is None for state in replicas):
                    break  # diverged
                for part in PARTS if family == TUNED else PARTS[-1:]:
                    ends = [interpolated(start, end, part) for end in replicas if end is not None]
                    outputs = torch.stack([self._every_draw(LED, end) for end in ends[:-1]])
                    held_out = outputs[mine, torch.arange(len(mine))]
                    recipe = Recipe(family, name, rate, steps, part)
                    found.append(Candidate(recipe, held_out, network=ends[-1]))
        return found

    def _trained(
        self, state: State | None, rows: Tensor, rate: float, steps: int, purpose: int
    ) -> State | None:
        """A network after some more steps on some rows; None if it has come to nothing."""
        if state is None:
            return None
        federation = self.federation
        plan = federation.plan(TARGET, federation.round)
        plan = replace(
            plan,
            lr=plan.lr * rate,
            steps=steps,
            batch_size=self._rows_in_a_step(rows),
            class_weights=self._class_weights(rows, plan.class_weights),
        )
        job = federation.job(
            federation.round, TARGET, state, rows=rows, plan=plan, purpose=TUNING + purpose
        )
        change = torch.empty_like(state.parameters)
        with one_thread():
            outcome = federation.bench.run(job, state.parameters[None], change)
        return None if outcome.failure else federation.trained(state, change, outcome)

    def _class_weights(
        self, rows: Tensor, usual: tuple[float, ...] | None
    ) -> tuple[float, ...] | None:
        """What gives the classes of some rows the shares that they have among all."""
        if self.classes is None:
            return usual
        every, left = (
            torch.bincount(self.site.y[some], minlength=self.classes).double()
            for some in (self.labelled, rows)
        )
        weights = torch.where(left > 0, every / left.clamp(min=1), torch.ones_like(left))
        if usual is None and bool((weights == 1).all()):
            return None
        return tuple((weights * torch.tensor(usual or [1.0])).tolist())

    def tuning_steps(self, how: Training) -> tuple[int, int]:
        """Steps of one family of networks, all replicas, and the rows in each."""
        replicas = min(how.folds, len(self.labelled)) + 1
        return len(how.rates) * how.stages[-1] * replicas, self._rows_in_a_step(self.labelled)

    def _rows_in_a_step(self, rows: Tensor) -> int:
        usual = self.federation.plan(TARGET, self.federation.round).batch_size
        return min(len(rows), max(NETWORK_BATCH, usual))

    def losses(self, held_out: Tensor) -> Tensor:
        """(…, rows that count) the losses of (…, rows, K) held-out outputs."""
        outputs, labels = held_out[..., self.counts, :], self.rows.labels[self.counts]
        if self.classes is None:
            wrong = outputs - labels.double().reshape(len(labels), -1)
            return wrong.square().sum(-1) * self.site.scale.size**2
        labels = labels.expand(outputs.shape[:-1])
        found = functional.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none")
        return found.view(labels.shape)

    def losses_of(self, candidates: Sequence[Candidate]) -> Tensor:
        """(C, rows that count) the losses of candidates that were judged."""
        return self.losses(_held_out(candidates))

    def _log_likelihoods(self, held_out: Tensor) -> list[float]:
        """Of the rows, as if they were 30 at least; of numbers at the variance that suits best.

        Of (C, rows, K) outputs; none of what is not finite.
        """
        losses = self.losses(held_out)
        number, means = max(losses.shape[1] / self.draws, LEAST_ROWS), losses.mean(1)
        if self.classes is None:
            means = means.clamp(min=1e-30).log() / 2
        found = torch.where(losses.isfinite().all(1), -number * means, -math.inf)
        return [float(value) for value in found]

    def weigh(self, candidates: Sequence[Candidate], discord: float = 0.0) -> Tensor:
        """Weights of candidates by their held-out losses; ``discord`` is ``τ² / σ²`` above."""
        kin = [candidate.recipe.kin for candidate in candidates]
        logs = torch.tensor(
            [
                SHARPNESS * likelihood
                + math.log(self._prior(c.recipe, discord) / kin.count(c.recipe.kin))
                for c, likelihood in zip(candidates, self._likelihoods(candidates), strict=True)
            ],
            dtype=torch.float64,
        )
        return torch.softmax(logs, 0)

    @cached_property
    def judges_no_fit(self) -> bool:
        """Whether no class has two labels, so that no replica knows the one it is asked about."""
        return self.classes is not None and bool(
            (torch.bincount(self.rows.labels) <= self.draws).all()
        )

    def _likelihoods(self, candidates: Sequence[Candidate]) -> list[float]:
        """Of every candidate; as taken to be where nothing that is fitted can be judged."""
        every = _held_out(candidates)
        if not self.judges_no_fit:
            return self._log_likelihoods(every)
        recipes = [candidate.recipe for candidate in candidates]
        nothing = torch.zeros_like(self.rows.truth)
        bodies = {
            recipe.body: outputs
            for recipe, outputs in zip(recipes, every, strict=True)
            if recipe.family == LED
        }
        starts = [
            outputs
            if recipe.family in AS_LED
            else recipe.begins_with * bodies.get(recipe.body, nothing)
            for recipe, outputs in zip(recipes, every, strict=True)
        ]
        *found, chance = self._log_likelihoods(torch.stack([*starts, nothing]))
        known = len(self.rows.labels.unique()) / nothing.shape[1]
        return [
            start
            if recipe.family in AS_LED
            else known * TAKEN * start + (1 - known) * min(start, chance)
            for recipe, start in zip(recipes, found, strict=True)
        ]

    def _prior(self, recipe: Recipe, discord: float) -> float:
        """The weight of a family before any loss is seen."""
        prior = 1.0
        if recipe.family in AS_LED and not self.judges_no_fit:
            trust = 1 / (1 + discord)
            prior *= OF_LED_AT_FEW if self.has_few else OF_LED ** (2 * trust - 1)
        if recipe.family == LINEARISED:
            prior *= OF_LINEARISED
        if recipe.body == EARLIER and recipe.family != TUNED:
            prior *= OF_EARLIER
        return prior

    def worth(self, candidates: Sequence[Candidate], weights: Tensor) -> Worth | None:
        """What those candidates that need sources add to the others.

        None if one kind is missing, a single row would have to tell, or none can. Without sources
        the others have the weights that they have among themselves.
        """
        alone = torch.tensor([not candidate.recipe.body for candidate in candidates])
        if not bool(alone.any()) or bool(alone.all()) or self.judges_no_fit:
            return None
        every = _held_out(candidates)
        by_itself = torch.where(alone, weights, 0.0)
        by_itself = by_itself / by_itself.sum().clamp(min=torch.finfo(weights.dtype).tiny)
        ours, theirs = (torch.einsum("c,cik->ik", w, every) for w in (weights, by_itself))
        lost = self.losses(theirs)
        gains = lost - self.losses(ours)
        number = len(gains) / self.draws
        if number < 2:
            return None
        if self.classes is None:
            points = 100 * gains / lost.mean().clamp(min=1e-30)
        else:
            labels = self.rows.labels[self.counts]
            right = [(o[self.counts].argmax(1) == labels).double() for o in (ours, theirs)]
            points = 100 * (right[0] - right[1])
        errors = [float(values.std()) / number**0.5 for values in (gains, points)]
        return Worth(
            round(number), float(lost.mean()), float(gains.mean()), errors[0],
            float(points.mean()), errors[1], self.classes is not None, float(gains.mean()),
        )  # fmt: skip


def _held_out(candidates: Sequence[Candidate]) -> Tensor:
    """(C, rows, K) what candidates that were judged say of rows without having them."""
    return torch.stack([c.held_out for c in candidates if c.held_out is not None])


def _asked_of(recipes: Sequence[Recipe], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """What ``ridge`` is given for some recipes: (P, n, K) ``a z``, and (P,) ``λ``."""
    given = torch.stack([recipe.slope * outputs for recipe in recipes])
    return given, torch.tensor([r.strength for r in recipes], dtype=torch.float64)


def place_of(model: nn.Module) -> HeadPlace | None:
    """Where the last layer is; None if it is not linear."""
    try:
        return HeadPlace.of(model)
    except ModelError:
        return None


@dataclass
class Sum:
    """What candidates add up to, as far as it is linear: per body, of the inputs, and networks."""

    bench: Bench
    slopes: dict[str, float]
    heads: dict[str, Tensor]
    inputs: Tensor | None
    bias: Tensor | None
    changes: dict[str, Tensor]
    networks: list[tuple[State, float]]

    @classmethod
    def of(cls, bench: Bench, weighted: Iterable[tuple[Candidate, float]]) -> Sum:
        """The weighted sum of candidates."""
        total = cls(bench, {}, {}, None, None, {}, [])
        for candidate, weight in weighted:
            body = candidate.recipe.body
            if candidate.network is not None:
                total.networks.append((candidate.network, weight))
                continue
            if body:
                slope = total.slopes.get(body, 0.0)
                total.slopes[body] = slope + weight * candidate.recipe.slope
            if candidate.head is not None:
                total.heads[body] = _added(total.heads.get(body), weight * candidate.head)
            if candidate.change is not None:
                total.changes[body] = _added(total.changes.get(body), weight * candidate.change)
            if candidate.inputs is not None:
                total.inputs = _added(total.inputs, weight * candidate.inputs)
            if candidate.bias is not None:
                total.bias = _added(total.bias, weight * candidate.bias)
        return total

    def blend(self, bodies: dict[str, State]) -> Blend:
        """The sum as models that are added."""
        members: list[State] = []
        scales: list[float] = []
        place, linear, bias = self.bench.place, self.inputs, self.bias
        if bias is not None and (linear is not None or place is None or not self.slopes):
            nothing = bias.new_zeros(len(bias), self.bench.size + 1)
            linear = (nothing if linear is None else linear).clone()
            linear[:, -1] += bias
            bias = None
        for name, slope in self.slopes.items():
            if place is None:
                members.append(bodies[name])
                scales.append(slope)
                continue
            weight, own = (slope * part for part in place.read(bodies[name].parameters))
            if name in self.heads:
                weight, own = weight + self.heads[name][:, :-1], own + self.heads[name][:, -1]
            if bias is not None:
                own, bias = own + bias, None
            changed = place.put(bodies[name].parameters, weight, own)
            members.append(State(changed, bodies[name].buffers))
            scales.append(1.0)
        secants = [pair for name, of in self.changes.items() for pair in secant(bodies[name], of)]
        members += [network for network, _ in (*secants, *self.networks)]
        scales += [weight for _, weight in (*secants, *self.networks)]
        factors = torch.tensor(scales, dtype=torch.float32)
        return Blend(tuple(members), factors, None if linear is None else _laid_out(linear))


def _laid_out(linear: Tensor) -> Tensor:
    """In the order in which it will be read from a file, so that the same bits come of it."""
    return linear.float().contiguous()


def _added(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


def joined(first: Blend, second: Blend) -> Blend:
    """The sum of two blends."""
    linear = first.linear
    if second.linear is not None:
        linear = _added(linear, second.linear)
    scales = torch.cat((first.scales, second.scales))
    return Blend((*first.members, *second.members), scales, linear)


def simplest(blend: Blend, bench: Bench) -> Model:
    """One model, where the blend is no more than that: a linear model, or a single network."""
    place, members = bench.place, blend.members
    if place is not None and bench.is_linear:
        parts = [place.read(member.parameters) for member in members]
        if blend.linear is not None:
            parts.append((blend.linear[:, :-1].double(), blend.linear[:, -1].double()))
        factors = torch.ones(len(parts), dtype=torch.float64)
        factors[: len(members)] = blend.scales
        weight = torch.einsum("k,kof->of", factors, torch.stack([w for w, _ in parts]))
        bias = torch.einsum("k,ko->o", factors, torch.stack([b for _, b in parts]))
        start = bench.federation.initial
        return State(place.put(start.parameters, weight, bias), start.buffers)
    if len(members) == 1 and blend.linear is None and float(blend.scales[0]) == 1:
        return members[0]
    return blend
