"""Stand-alone baselines of another kind: what a user would try before joining anything.

``target-only`` is the same network trained by the same steps without sources. On a few dozen rows
nobody would train that: one would take scikit-learn's logistic regression or random forest, with
their regularisation chosen on the rows at hand. Whatever a federation gains, it has to gain over
these too.

- ``alone-logistic``: logistic regression (ridge regression for numbers) on standardised inputs;
  the penalty by cross-validated log loss (squared error).
- ``alone-forest``: a random forest of 100 trees; the least number of rows in a leaf by the same
  loss out of bag, which is a forest's own cross-validation.

Both are fitted once, in the first round, on the target's labelled rows as a model gets them
(pixels, for images); no source does anything, there is no warm-up, and what the rounds, steps and
learning rates of the run are is nothing to them. Fewer rows than folds mean leave-one-out. A class
of which the target has no row is never answered; if all rows are of one class, that is the answer.

What is delivered is a torch module like any other: a linear layer that has the standardisation
folded in, or a walk down all trees at once, to the same probabilities as scikit-learn's. Trees have
at most 256 leaves, so that their size is known beforehand.

Over a network there is nothing to run: it is the target's own business, and a tree would tell the
coordinator values of rows, since it splits half way between two of them.

Breiman: Random forests, Machine Learning 45, 2001. Pedregosa et al.: Scikit-learn: machine learning
in Python, JMLR 12, 2011.
"""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedbridge.base.files import check_memory
from fedbridge.data.preparing import is_redrawn
from fedbridge.federation.method import Method, Record
from fedbridge.methods.cross_validation import FOLDS, deal_folds, labelled_rows
from fedbridge.models.networks import LinearModel
from fedbridge.training.job import TARGET, seed_of
from fedbridge.training.state import State
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fedbridge.data.task import FederatedTask
    from fedbridge.evaluation.metrics import Evaluation

    Array = NDArray[np.float64]

PENALTIES = tuple(10.0**power for power in range(-2, 5))
"""Ridge penalties to try; scikit-learn's ``C`` is one over them."""

LEAST_IN_LEAF = (1, 2, 5)
TREES = 100
MOST_LEAVES = 256
ABSENT = -20.0
"""Output for a class of which the target has no row."""

UNLIKELY = 1e-6
"""Probabilities below this count as so much: a forest is sure of what it has never seen."""

FITTING = 400
"""Purpose of the forest's seed."""


class Alone(Method):
    """Fits once to the target's labelled rows and keeps that."""

    bound_by: ClassVar[str] = "no other site has a part in it, so the target runs it by itself"

    def room(self) -> tuple[int, int]:
        """Nothing is trained by steps."""
        return 1, 1

    def warm_up(self, round: int) -> dict[str, str]:
        """No source trains."""
        return {}

    _worth: Evaluation | None = None
    """Of what was fitted, where the target's rows look the same in every round."""

    def run_round(self, round: int) -> Record:
        """Fit in the first round."""
        record = Record(beta=[0.0] * self.federation.n_sources, evaluation=self._worth)
        if round == 1:
            begun = time.perf_counter()
            self.state, record.extra["choice"] = self._fitted()
            record.seconds_train = time.perf_counter() - begun
        elif self._worth is None and not self._redrawn():
            record.evaluation = self._worth = self.federation.evaluate(round, self.state)
        return record

    def _redrawn(self) -> bool:
        task = self.federation.task
        return any(is_redrawn(site.prepare) for site in (task.test, task.target))

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """What was fitted, whatever the model of the run would be."""
        return super().deliver(self.compose(model, self.federation.task), state)

    @property
    def composed(self) -> bool:
        """What was fitted stands in the model's place, not around it."""
        return False

    def _fitted(self) -> tuple[State, str]:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        federation, site = self.federation, self.federation.task.target
        rows = labelled_rows(federation)
        needed = (4 + 8) * len(site) * prod(federation.task.input_shape)  # float32 and float64
        check_memory(needed, "all labelled rows at once", "choose another method, or a `backbone`")
        with one_thread():
            inputs = federation.bench.inputs(site, round=federation.round, rows=rows)
        place = {int(row): k for k, row in enumerate(rows)}
        dealt = deal_folds(federation, FOLDS) if len(rows) > 1 else []
        folds = [np.array([place[int(row)] for row in fold]) for fold in dealt]
        labels = site.y[rows].numpy()
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few rows, rows never out of bag, slow convergence
            return self.fit(inputs.double().numpy(), labels, folds)

    @abstractmethod
    def fit(self, inputs: Array, labels: Array, folds: list[Array]) -> tuple[State, str]:
        """The fitted module as a state, and what was chosen."""


def log_loss(shares: Array, labels: Array) -> float:
    """Sum of the log losses, no probability counting as less than ``UNLIKELY``."""
    return float(-np.log(np.maximum(shares[np.arange(len(labels)), labels], UNLIKELY)).sum())


class AloneLogistic(Alone):
    """scikit-learn's logistic (or ridge) regression on the target's rows, penalty chosen there."""

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """A linear model."""
        return LinearModel(prod(task.input_shape), task.outputs)

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The same from a saved run."""
        outputs, inputs = tensors["head.weight"].shape
        return LinearModel(inputs, outputs)

    def fit(self, inputs: Array, labels: Array, folds: list[Array]) -> tuple[State, str]:
        """Standardise, choose the penalty, fit, and fold the standardisation in.

        A ridge penalty does not see rotations: in the principal axes of the rows there are at most
        as many inputs as rows, and the answers are the same.
        """
        n_classes = self.federation.task.n_classes
        centre, scale = inputs.mean(0), inputs.std(0)
        scale[scale == 0] = 1.0
        rows = (inputs - centre) / scale
        left, sizes, axes = np.linalg.svd(rows, full_matrices=False)
        reduced = left * sizes
        solve = _ridge if n_classes is None else _logistic(n_classes)

        def held_out(penalty: float) -> float:
            total = 0.0
            for fold in folds:
                others = np.setdiff1d(np.arange(len(rows)), fold)
                weight, bias = solve(reduced[others], labels[others], penalty)
                answers = reduced[fold] @ weight.T + bias
                if n_classes is None:
                    total += float(
                        ((answers.reshape(labels[fold].shape) - labels[fold]) ** 2).sum()
                    )
                else:
                    shares = torch.from_numpy(answers).softmax(1).numpy()
                    total += log_loss(shares, labels[fold])
            return total

        penalty = min(reversed(PENALTIES), key=held_out) if folds else 1.0
        weight, bias = solve(reduced, labels, penalty)
        weight = weight @ axes / scale
        bias = bias - weight @ centre
        flat = np.concatenate((weight.reshape(-1), bias.reshape(-1)))
        return State(torch.from_numpy(flat).float(), {}), f"penalty {penalty:g}"


def _logistic(n_classes: int) -> Callable[[Array, Array, float], tuple[Array, Array]]:
    """A solver that gives weights (K, d) and biases (K,) for all classes of the task."""

    def solve(rows: Array, labels: Array, penalty: float) -> tuple[Array, Array]:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

        weight, bias = np.zeros((n_classes, rows.shape[1])), np.full(n_classes, ABSENT)
        there = np.unique(labels)
        bias[there] = 0.0
        if len(there) > 1:
            found = LogisticRegression(C=1 / penalty, max_iter=1000).fit(rows, labels)
            last = there[1:] if len(there) == 2 else there  # of two classes only the second's
            weight[last], bias[last] = found.coef_, found.intercept_
        return weight, bias

    return solve


def _ridge(rows: Array, labels: Array, penalty: float) -> tuple[Array, Array]:
    from sklearn.linear_model import Ridge

    found = Ridge(alpha=penalty).fit(rows, labels)
    return np.atleast_2d(found.coef_), np.atleast_1d(found.intercept_)


class Forest(nn.Module):
    """Trees as arrays: all rows walk down all trees at once.

    In node ``v`` of a tree a row goes left if its ``feature[v]`` is at most ``threshold[v]``;
    leaves lead to themselves, so that everybody has arrived after as many steps as the deepest
    tree has levels. Answers are the mean of the ``values`` there, for classes its logarithm.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    depth: Tensor
    classes: Tensor

    def __init__(self, nodes: int, outputs: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((TREES, nodes, outputs), 1 / outputs))
        for name in ("feature", "left", "right"):
            self.register_buffer(name, torch.zeros(TREES, nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(TREES, nodes, dtype=torch.float64))
        self.register_buffer("depth", torch.zeros((), dtype=torch.int64))
        self.register_buffer("classes", torch.zeros((), dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of the mean shares, or mean values."""
        rows = x.flatten(1).float().double()
        trees = torch.arange(TREES, device=rows.device)
        # `len` would fix the number of rows of an exported graph
        at = torch.zeros(rows.shape[0], TREES, dtype=torch.int64, device=rows.device)
        for _ in range(int(self.depth)):
            goes_left = rows.gather(1, self.feature[trees, at]) <= self.threshold[trees, at]
            at = torch.where(goes_left, self.left[trees, at], self.right[trees, at])
        mean = self.values[trees, at].mean(1)
        return torch.log(mean.clamp(min=UNLIKELY)) if bool(self.classes) else mean


class AloneForest(Alone):
    """scikit-learn's random forest on the target's rows, size of its leaves chosen out of bag."""

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """Room for trees that tell all rows apart, or have the most leaves."""
        return Forest(2 * min(max(1, len(task.target)), MOST_LEAVES) - 1, task.outputs)

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The same from a saved run."""
        return Forest(*tensors["values"].shape[1:])

    def fit(self, inputs: Array, labels: Array, folds: list[Array]) -> tuple[State, str]:
        """One forest for every size of leaves, and the best of them."""
        rows = inputs.astype(np.float32)
        forests = {
            least: self._forest(rows, labels, least)
            for least in LEAST_IN_LEAF
            if least == 1 or 2 * least <= len(rows)
        }
        least = min(forests, key=lambda least: forests[least][1])
        return self._state(forests[least][0]), f"at least {least} rows in a leaf"

    def _forest(self, rows: Any, labels: Array, least: int) -> tuple[Any, float]:
        """A fitted forest and its loss out of bag; rows that are in all bags have no say."""
        from sklearn.ensemble import (  # type: ignore[import-untyped]
            RandomForestClassifier,
            RandomForestRegressor,
        )

        n_classes = self.federation.task.n_classes
        kind = RandomForestRegressor if n_classes is None else RandomForestClassifier
        seed = seed_of(self.federation.seed, 0, TARGET, FITTING) % 2**32
        forest = kind(
            TREES,
            min_samples_leaf=least,
            max_leaf_nodes=max(2, min(MOST_LEAVES, len(rows))),
            oob_score=len(rows) > 1,
            random_state=seed,
        )
        forest.fit(rows, labels)
        if len(rows) < 2:
            return forest, 0.0
        if n_classes is None:
            wrong = (forest.oob_prediction_ - labels) ** 2
            return forest, float(wrong.mean())
        out = forest.oob_decision_function_
        known = np.isfinite(out).all(1)
        places = np.searchsorted(forest.classes_, labels)
        return forest, log_loss(out[known], places[known])

    def _state(self, forest: Any) -> State:
        """scikit-learn's trees in the module's arrays."""
        n_classes = self.federation.task.n_classes
        module = cast("Forest", self.compose(nn.Identity(), self.federation.task))
        values = module.values.detach().zero_().numpy()
        arrays = {name: buffer.numpy() for name, buffer in module.named_buffers()}
        for k, estimator in enumerate(forest.estimators_):
            tree = estimator.tree_
            nodes = np.arange(tree.node_count)
            inner = tree.children_left >= 0
            arrays["left"][k, nodes] = np.where(inner, tree.children_left, nodes)
            arrays["right"][k, nodes] = np.where(inner, tree.children_right, nodes)
            arrays["feature"][k, nodes] = np.where(inner, tree.feature, 0)
            arrays["threshold"][k, nodes] = np.where(inner, tree.threshold, 0.0)
            if n_classes is None:
                values[k, nodes] = tree.value[:, :, 0]
            else:
                shares = tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True)
                values[k][np.ix_(nodes, forest.classes_)] = shares
        buffers = dict(module.named_buffers())
        depth = max(estimator.tree_.max_depth for estimator in forest.estimators_)
        buffers["depth"] = torch.tensor(depth)
        buffers["classes"] = torch.tensor(n_classes is not None)
        return State(module.values.detach().reshape(-1).clone(), buffers)
