"""kNN-Per: FedAvg's model, corrected by the target's own rows that look alike.

The target keeps the features ``φ(x_j)`` of its labelled rows under the FedAvg model. For a new
``x`` the ``k`` nearest of them vote, near ones more,

    p_knn(y | x) ∝ Σ_j 1[y_j = y] exp(−‖φ(x) − φ(x_j)‖² / (d s)) ,
    p(y | x) = λ p_knn(y | x) + (1 − λ) p_model(y | x) ,

with ``d`` the number of features and ``s`` the kernel's ``scale``, 1. The features are what the
head gets; on a linear model they are the inputs. ``λ`` is taken from a grid by the loss of the
target's labelled rows, each judged without itself in the store (leave-one-out); test rows have no
say. The FedAvg model has trained on these rows, so ``λ`` errs on the small side. ``λ = 0`` is
FedAvg. The store lives with the target; only ``λ`` leaves it.

Read beside the authors' code (omarfoq/knn-per): kernel, 10 neighbours and a store of all labelled
rows are theirs. Different: they tabulate all ``λ`` on the test rows, ours is chosen as above; their
script mixes the votes with raw outputs unless an argument is emptied, ours with probabilities as in
the paper; theirs makes the store once, after the last round, ours in every round.

Marfoq, Neglia, Vidal, Kameni: Personalized Federated Learning through Local Memorization,
ICML 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.nn import functional

from fedbridge.base.options import check_number, check_whole
from fedbridge.core import rules
from fedbridge.federation.needs import Need
from fedbridge.methods.rule import RuleMethod
from fedbridge.models import split_model
from fedbridge.training.job import TARGET
from fedbridge.training.neighbours import STORE, Memorising, blend, squared_distances, vote
from fedbridge.training.state import Recalled, State
from fedbridge.training.target_side import Decision, News, TargetSide
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record
    from fedbridge.training.state import Model

NEIGHBOURS = 10
GRID = tuple(step / 10 for step in range(11))
VOTE = "vote"
"""What the weight of the vote is told as."""


class KnnPer(RuleMethod):
    """FedAvg and a vote of the ``neighbours`` (10) nearest labelled rows of the target.

    Options:
        neighbours: rows that vote (10).
        share: weight of the vote; None chooses it by leave-one-out (None).
        scale: squared distance per feature at which a vote counts a factor e less (1).
    """

    options: ClassVar[tuple[str, ...]] = ("neighbours", "share", "scale")
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.HEAD)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options, rules.get("fedavg"))
        self.given = {}  # none of them is the rule's
        self.store: Mapping[str, Tensor] | None = None

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The store, with the target."""
        return KnnSide(federation, options)

    @property
    def model(self) -> Model:
        """FedAvg's model with the store, where that is known here."""
        return self.state if self.store is None else Recalled(self.state, self.store)

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The same from a saved run; at a coordinator's there is no store."""
        known = all(name in tensors for name in STORE)
        return Memorising(model, tensors) if known else super().restore(model, tensors)

    def run_round(self, round: int) -> Record:
        """A round of FedAvg, then the store and the mixing weight anew."""
        record = super().run_round(round)
        if self.federation.name_of(TARGET) in record.failures:
            return record
        decision = self.ask_target(round, News(self.state.tensors()), record)
        if decision is not None:
            own = decision.state
            self.store = own.store if isinstance(own, Recalled) else None
            record.extra["share"] = decision.facts.get("weights", {}).get(VOTE)
        return record

    def remember(
        self, model: Model, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take model and store up again."""
        if isinstance(model, Recalled):
            self.store, model = model.store, model.state
        super().remember(model, memory, facts)


class KnnSide(TargetSide):
    """The store of the target's rows, made anew for the model of every round."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        count = check_whole("neighbours", options.get("neighbours", NEIGHBOURS), least=1)
        self.neighbours = count
        share = options.get("share")
        self.share = None if share is None else check_number("share", share, least=0, most=1)
        self.scale = check_number("scale", options.get("scale", 1.0), above=0)

    def decide(self, news: News) -> Decision:
        """Remember the rows as the model in the news sees them."""
        state = State.of_tensors(news.tensors)
        with one_thread():
            store = self._remember_rows(state)
        return Decision(Recalled(state, store), {"weights": {VOTE: float(store["share"])}})

    def _remember_rows(self, state: State) -> dict[str, Tensor]:
        """Features and labels of the target's rows, the kernel's scale, the weight of the vote."""
        federation, site = self.federation, self.federation.task.target
        assert federation.task.n_classes is not None
        rows = federation.target_rows
        labels = site.y if rows is None else site.y[rows]
        keys = federation.predict(state, site, _features, rows)
        outputs = federation.predict(state, site, rows=rows)
        votes = functional.one_hot(labels, federation.task.n_classes).float()
        distances = squared_distances(keys.double(), keys.double())
        distances.fill_diagonal_(torch.inf)
        scale = keys.shape[1] * self.scale
        share = self.share
        if share is None:
            share = self._best(distances, votes, outputs, scale)
        return {
            "keys": keys,
            "votes": votes,
            "share": torch.tensor(share, dtype=torch.float32),
            "scale": torch.tensor(scale, dtype=torch.float32),
            "neighbours": torch.tensor(min(self.neighbours, len(labels))),
        }

    def _best(self, distances: Tensor, votes: Tensor, outputs: Tensor, scale: float) -> float:
        """The weight with the smallest leave-one-out loss; one row alone cannot be left out."""
        if len(votes) < 2:
            return 0.0
        count = min(self.neighbours, len(votes) - 1)
        near = vote(distances, votes, count, scale)
        labels = votes.argmax(1)
        losses = [float(functional.nll_loss(blend(outputs, near, share), labels)) for share in GRID]
        return GRID[losses.index(min(losses))]


def _features(module: nn.Module, x: Tensor) -> Tensor:
    features, _ = split_model(module)
    return cast("Tensor", features(x)).flatten(1)
