"""fedbridge as a Flower strategy: its rules and methods in anybody's ``ServerApp``.

    strategy = FedBridgeStrategy(rule="auto")
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)

The rounds are those of ``fedbridge.run``: the same loop, history, checkpoints and methods as on
one machine. Flower carries the messages.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedbridge import methods
from fedbridge.base.errors import OptionError
from fedbridge.base.files import to_json
from fedbridge.core.blocks import buffer_copies, parameter_vector
from fedbridge.data.task import with_positive
from fedbridge.federation.loop import Run, RunResult
from fedbridge.federation.settings import RECORD, Settings, split_options
from fedbridge.flower.coordinator import RESERVED, FlowerEngine
from fedbridge.flower.membership import Membership
from fedbridge.flower.messages import Layout, RunSpec, Skeleton, arrays, tensors
from fedbridge.flower.options import NETWORK, NetworkOptions
from fedbridge.flower.pki import site_keys
from fedbridge.flower.transport import Transport
from fedbridge.report import ResultPages
from fedbridge.runs.folder import JOINED, RunFolder, founding
from fedbridge.runs.members import NewcomersError
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flwr.serverapp import Grid

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.tables.preprocessing import Preprocessing
    from fedbridge.data.task import FederatedTask

log = logging.getLogger("fedbridge")


class FedBridgeStrategy(Strategy):
    """Federated domain adaptation for one target among the connected sites.

    Args:
        rule: any rule, or a method that travels (``auto``, ``fedprox``).
        target: the site that adapts; None takes the one that says so itself.
        sites: the sources in order; None takes whoever is there when ``min_sites`` are, in the
            order of names.
        min_sites: how many sites to wait for where they are not named, the target among them.
        seed: of everything random.
        out: folder for history, checkpoints and model; a run that is there is resumed.
        secure: believe a site only if its node has the site's key, as it lies in ``keys``.
        keys: folder with the sites' public keys, ``NAME/node.pub`` each.
        members: file that says which sources belong to the federation; they may join or leave
            between rounds, while a run goes on. A run with one needs ``out``.
        own_training: sites have training loops of their own (see ``reply_to_train``).
        name: what to call the task.
        about: more entries for the run's configuration file.
        preprocessing: how new rows are to be treated by whoever has the coordinator's model.
        positive: the label, of two, that the target's measures are of; by default the second.
        **options: those of ``NetworkOptions``, and of the run and the rule as ``fedbridge.run``
            takes them.
    """

    def __init__(
        self,
        rule: str = "auto",
        *,
        target: str | None = None,
        sites: Sequence[str] | None = None,
        min_sites: int = 2,
        seed: int = 0,
        out: str | Path | None = None,
        secure: bool = False,
        keys: str | Path | None = None,
        members: str | Path | None = None,
        own_training: bool = False,
        name: str = "federation",
        about: Mapping[str, Any] | None = None,
        preprocessing: Preprocessing | ImagePreprocessing | None = None,
        positive: str | None = None,
        **options: Any,
    ) -> None:
        methods.check_travels(rule)
        if secure and (target is None or keys is None):
            raise OptionError(
                "Expected `target` to be named, and the folder of the sites' public keys as "
                "`keys`, where roles are pinned to keys (secure=True), but got "
                f"target={target!r} and keys={keys!r}."
            )
        if own_training and options.get("evidence") == "probe":
            raise OptionError(
                "Expected evidence that training loops of one's own can give, but got "
                "evidence='probe' with own_training=True, and they tell no gradients: leave it "
                "out, or use client_app(...)."
            )
        if own_training and not methods.class_of(rule).plain_jobs:
            raise OptionError(
                f"Expected a method that training loops of one's own can serve, but got {rule!r} "
                f"with own_training=True, whose clients train parts of the model by themselves: "
                f"choose another, or use client_app(...)."
            )
        own = [name for name in RECORD if options.get(name) is not None]
        if own:
            raise OptionError(
                f"Expected options of the run, but got {own[0]!r}: how its rows are protected is a "
                f"site's own word, in its own configuration."
            )
        network = {name: options.pop(name) for name in NETWORK if name in options}
        split_options(options, rule, methods.options_of(rule), {})
        self.rule, self.target, self.sites, self.seed, self.out = rule, target, sites, seed, out
        self.network = NetworkOptions(**network)
        self.min_sites, self.secure, self.keys, self.name = min_sites, secure, keys, name
        self.own_training, self.about, self.options = own_training, about or {}, options
        self.preprocessing, self.positive = preprocessing, positive
        self.members = None if members is None or out is None else Path(members)
        self.joined: dict[str, int] = {}
        self.result: RunResult | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the federation; ``self.result`` is what ``fedbridge.run`` would return.

        Without initial arrays the model is built from its name (the option ``model``), as a local
        run with the same seed would build it.

        As in Flower's own strategies, ``train_config`` and ``evaluate_config`` are in the
        ``config`` of every message to a training loop of one's own, and ``evaluate_fn`` is called
        with the model of every round, and with the initial one as that of round 0. What cannot be
        is refused: our own client trains as the options say, and a model that the target decides
        on (``auto``) never comes here.
        """
        self._check_asked(train_config, evaluate_config, evaluate_fn)
        transport = Transport(grid, self.network.timeout if timeout is None else timeout)
        folder = None if self.out is None else RunFolder(Path(self.out))
        sites = self._sites(folder)
        membership = Membership(transport, self.target, sites, self._keys(), self.members)
        membership.gather(self.network.wait, self.min_sites)
        self.target = membership.target
        result, self.result = Result(), None
        asked = (num_rounds, train_config, evaluate_config, evaluate_fn)
        while self.result is None:
            try:
                run = self._prepared(transport, membership, initial_arrays, result, *asked)
                self.result = run.go(folder, resume=True)
            except NewcomersError as news:
                self._join(news.names, news.round, membership)
        model = self.result.model
        state = State(parameter_vector(model), buffer_copies(model))
        result.arrays = arrays(Layout.of_model(model).arrays(state))
        return result

    def _keys(self) -> dict[bytes, str] | None:
        return site_keys(Path(self.keys)) if self.secure and self.keys is not None else None

    def _sites(self, folder: RunFolder | None) -> Sequence[str] | None:
        """The sources; those that were added since the run in the folder began come last."""
        there = None if folder is None else folder.config()
        if self.members is None or self.sites is None or folder is None or there is None:
            return self.sites
        self.joined = dict(there.get(JOINED, {}))
        found = folder.load_checkpoint()
        new = [name for name in self.sites if name not in there["sources"]]
        self.joined |= dict.fromkeys(new, 1 if found is None else found[0].round + 1)
        return [*there["sources"], *new]

    def _join(self, names: Sequence[str], round: int, membership: Membership) -> None:
        self.joined |= dict.fromkeys(names, round)
        membership.take_in(names, self._keys())
        membership.notes += [f"{name} joins the federation in round {round}." for name in names]

    def _prepared(
        self,
        transport: Transport,
        membership: Membership,
        initial_arrays: ArrayRecord | None,
        result: Result,
        num_rounds: int,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Run:
        """The run with the sources that belong to the federation now."""
        task: FederatedTask = membership.task(self.name)
        if self.positive is not None:
            task = with_positive(task, self.positive)
        if not methods.decides_at_target(self.rule):
            task = replace(task, preprocessing=self.preprocessing)
        settings, own = self._settings(task, initial_arrays)
        self.summary()

        def look_for_newcomers(line: dict[str, Any]) -> None:
            names = membership.review()
            if names and line["round"] < num_rounds:
                raise NewcomersError(names, line["round"] + 1)

        return Run(
            task,
            self.rule,
            methods.class_of(self.rule),
            partial(methods.make, self.rule),
            num_rounds,
            self.seed,
            settings,
            own,
            (lambda line: _note(result, line), look_for_newcomers),
            engine=partial(
                FlowerEngine,
                transport=transport,
                membership=membership,
                spec=self._spec(membership, settings, own, task.model),
                network=self.network,
                own_training=self.own_training,
                configs={
                    "train": dict(train_config or {}),
                    "evaluate": dict(evaluate_config or {}),
                },
                observe=None if evaluate_fn is None else partial(_measure, evaluate_fn, result),
            ),
            initial=settings.model if isinstance(settings.model, nn.Module) else None,
            about=self.about,
            extras=ResultPages(),
            joined=self.joined,
        )

    def _check_asked(
        self,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: object,
    ) -> None:
        """Refuse what would be ignored."""
        for name, given in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if given and not self.own_training:
                raise OptionError(
                    f"Expected `{name}` for training loops of one's own (own_training=True), but "
                    f"sites of this strategy train as its options say: give them to "
                    f"FedBridgeStrategy, as in FedBridgeStrategy(lr=0.05)."
                )
            taken = [key for key in given or () if key in RESERVED]
            if taken:
                raise OptionError(
                    f"Expected names in `{name}` that fedbridge does not use itself, but got "
                    f"{taken[0]!r}: choose another."
                )
        if evaluate_fn is not None and methods.decides_at_target(self.rule):
            raise OptionError(
                f"Expected no `evaluate_fn` with {self.rule!r}, whose model the target decides on "
                f"and keeps, so that it cannot be measured here: leave it out, and read "
                f"`evaluate_metrics_clientapp`."
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A plain message to every node; ``start`` sends each site its own jobs instead."""
        return _messages(MessageType.TRAIN, server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refused: a round needs more than its replies."""
        raise NotImplementedError(DRIVES_ITSELF)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A plain message to every node; ``start`` asks the target alone."""
        return _messages(MessageType.EVALUATE, server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Refused: a round needs more than its replies."""
        raise NotImplementedError(DRIVES_ITSELF)

    def summary(self) -> None:
        """Log what this is."""
        log.info(
            "fedbridge: %s for target %s, updates as %s%s",
            self.rule,
            self.target,
            self.network.encoding,
            ", roles pinned to the sites' keys" if self.secure else "",
        )

    def _settings(
        self, task: FederatedTask, initial: ArrayRecord | None
    ) -> tuple[Settings, dict[str, object]]:
        given = dict(self.options)
        if initial is not None:
            given["model"] = Skeleton(tensors(initial))
        return split_options(
            given,
            self.rule,
            methods.options_of(self.rule),
            methods.usual_options(self.rule, task, given),
            task.model,
        )

    def _spec(
        self, membership: Membership, settings: Settings, own: dict[str, object], usual: str
    ) -> RunSpec:
        assert membership.sources is not None
        assert membership.target is not None
        here = ("model", "workers", "norm_ratio")
        plain = {k: v for k, v in settings.to_json().items() if k not in here}
        named = settings.model is None or isinstance(settings.model, str)
        model = (settings.model_name or usual) if named else None
        spec = RunSpec(
            "",
            self.seed,
            membership.target,
            membership.sources,
            self.rule,
            own,
            plain,
            model,
            self.network.encoding,
            self.joined,
        )
        begun = founding(asdict(spec))
        key = to_json({**begun, "out": None if self.out is None else str(self.out)})
        return replace(spec, run=hashlib.sha256(key.encode()).hexdigest()[:16])


DRIVES_ITSELF = (
    "FedBridgeStrategy drives its rounds by itself: call start(grid, initial_arrays, num_rounds)."
)


def _measure(
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None],
    result: Result,
    round: int,
    model: ArrayRecord,
) -> None:
    """Let the owner of a server measure a round's model."""
    measured = evaluate(round, model)
    if measured is not None:
        result.evaluate_metrics_serverapp[round] = measured


def _note(result: Result, line: dict[str, Any]) -> None:
    """A round of the history as Flower's metrics."""
    number = int(line["round"])
    measured = MetricRecord()
    for name in ("loss", "accuracy", "auc"):
        if line[name] is not None:
            measured[name] = float(line[name])
    result.evaluate_metrics_clientapp[number] = measured
    costs = ("bytes_up", "bytes_down", "seconds_train")
    result.train_metrics_clientapp[number] = MetricRecord(
        {name.replace("_", "-"): float(line[name]) for name in costs}
    )
    for site, reason in line["failures"].items():
        log.warning("round %d goes on without %s: %s", number, site, reason)
    for note in line["notes"]:
        log.info("round %d: %s", number, note)
    told = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
    log.info("round %d: %s", number, told)


def _messages(
    kind: str, server_round: int, model: ArrayRecord, config: ConfigRecord, grid: Grid
) -> list[Message]:
    content = RecordDict({"arrays": model, "config": config})
    return [
        Message(content, node, kind, group_id=str(server_round)) for node in grid.get_node_ids()
    ]
