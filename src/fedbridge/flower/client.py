"""The site's end: Flower messages in, the site's own work, Flower messages out.

``client_app`` is ready to run. A Flower user with a training loop of his own writes his own
``ClientApp`` and answers with ``reply_to_hello``, ``reply_to_train`` and ``reply_to_evaluate``, or
``reply_to_decide`` where the target has a choice.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedbridge._version import __version__
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import file_name
from fedbridge.base.text import plain
from fedbridge.core.blocks import Blocks, buffer_copies, parameter_vector
from fedbridge.core.estimators import NoiseStream
from fedbridge.core.sketch import Sketch
from fedbridge.data.site_package import LocalSite, load_site
from fedbridge.data.task import Site
from fedbridge.evaluation.metrics import Evaluation, Metrics
from fedbridge.federation.settings import check_device
from fedbridge.flower import messages
from fedbridge.flower.floors import OPEN, floors_in
from fedbridge.flower.options import SITE_FOLDER
from fedbridge.flower.privacy import privacy_in
from fedbridge.flower.site import CPU, Delivery, SiteMemory, SiteWorker, default_folder
from fedbridge.training.job import ClientResult, Outcome
from fedbridge.training.target_side import News

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from fedbridge.training.state import Model, State

    Handler = Callable[[Message, Context], Message]
    Loader = Callable[[Context], LocalSite]
    ModelMaker = Callable[[], nn.Module]


log = logging.getLogger("fedbridge")


def client_app(load: Loader | None = None, model: ModelMaker | None = None) -> ClientApp:
    """A site as a Flower ``ClientApp``.

    Args:
        load: reads this site's rows and nobody else's; by default the file that the node's
            configuration names as ``data``.
        model: makes the model; by default the one that the coordinator names, which must be
            built in.

    The node's configuration may hold ``data``, ``memory`` (a folder for what the site remembers
    between rounds and, at a target that has no folder of a deployment, for its model) and, for
    local differential privacy, ``dp-clip``, ``dp-noise``, ``dp-delta`` and ``dp-budget`` (the
    largest epsilon, over all runs on these rows), for record-level privacy ``record-epsilon``,
    ``record-rounds``, ``record-clip`` and ``record-delta``, the site's floors (``floors``), and its
    ``device``, which no run can choose for it.
    """
    app = ClientApp()
    loading = load or load_own_site

    @app.query()
    @discreet
    def hello(message: Message, context: Context) -> Message:
        """Say who this is, or why it cannot take part."""
        try:
            check_device(_device(context))
            site = loading(context)
        except Exception as error:
            name, role = (str(context.node_config.get(key, "")) for key in ("site", "role"))
            if not name:
                raise
            _log("this site cannot take part", error)
            return Message(messages.unable_reply(name, role, error), reply_to=message)
        return reply_to_hello(
            message,
            site=site.name,
            role=site.role,
            num_examples=len(site.train),
            num_test=0 if site.test is None else len(site.test),
            input_shape=tuple(site.train.x.shape[1:]),
            n_classes=site.n_classes,
            outputs=1 if site.train.y.ndim == 1 else int(site.train.y.shape[1]),
            class_names=site.class_names,
            num_unlabelled=0 if site.unlabelled is None else len(site.unlabelled),
        )

    @app.train()
    @discreet
    def train(message: Message, context: Context) -> Message:
        """Do a round's jobs."""
        worker, work = _worker(message, context, loading, model)
        known = messages.tensors(message.content.array_records.get("objective", ArrayRecord()))
        jobs = [messages.job_of_json(job, known) for job in work["jobs"]]
        states = _states(message, worker.layout)
        kept = bool(work.get("known", False))
        done = worker.train(int(work["round"]), jobs, states, known=kept)
        site = worker.site
        about = {"note": done.note, "epsilon": done.epsilon}
        return Message(
            messages.train_reply(site.name, site.role, done.deliveries, about), reply_to=message
        )

    @app.evaluate()
    @discreet
    def evaluate(message: Message, context: Context) -> Message:
        """Measure a model on the target's test rows, or choose one and measure that."""
        return _measured(message, *_worker(message, context, loading, model))

    return app


def discreet(handle: Handler) -> Handler:
    """Keep what went wrong at the site: an error's text may quote rows.

    Flower would send it to the coordinator. That only learns the kind of error, unless it is
    about what the coordinator itself asks.
    """

    def handled(message: Message, context: Context) -> Message:
        try:
            return handle(message, context)
        except messages.RequestError:
            raise
        except Exception as error:
            raise site_error(error) from None

    return handled


def site_error(error: Exception) -> messages.SiteError:
    """What leaves the site of an error, whose text stays in the site's own log."""
    _log("a message could not be answered", error)
    return messages.SiteError(messages.only_kind(error))


def _log(what: str, error: Exception) -> None:
    """For the site's own eyes: our own errors say what to do, others where they come from."""
    ours = isinstance(error, FedbridgeError)
    log.error("%s: %s", what, plain(str(error) if ours else format_exc()))


def load_own_site(context: Context) -> LocalSite:
    """The file that the node's configuration names, or, in a simulation, the one of its number."""
    data = context.node_config.get("data")
    if data is not None:
        return load_site(Path(str(data)).expanduser())
    if "partition-id" in context.node_config and context.run_config.get("data"):
        number = int(context.node_config["partition-id"])
        return load_site(Path(str(context.run_config["data"])) / f"site-{number}.safetensors")
    raise OptionError(
        "Expected the node's configuration to name this site's file as `data`, but it does not: "
        "start the node with --node-config 'data=\"site.safetensors\"'."
    )


def reply_to_hello(
    message: Message,
    *,
    site: str,
    role: str,
    num_examples: int,
    num_test: int = 0,
    input_shape: Sequence[int],
    n_classes: int | None,
    outputs: int = 1,
    class_names: Sequence[str] | None = None,
    num_unlabelled: int = 0,
) -> Message:
    """Say which site this is and what its rows look like: what a coordinator asks first."""
    about = ConfigRecord(
        {
            "site": site,
            "role": role,
            "input-shape": list(input_shape),
            "class-names": list(class_names or ()),
            "version": __version__,
        }
    )
    numbers = MetricRecord(
        {
            "num-examples": num_examples,
            "num-test": num_test,
            "num-classes": n_classes or 0,
            "num-outputs": outputs,
            "num-unlabelled": num_unlabelled,
        }
    )
    return Message(RecordDict({messages.SITE: about, "hello": numbers}), reply_to=message)


def reply_to_train(
    message: Message,
    model: nn.Module,
    *,
    site: str,
    role: str,
    num_examples: int,
    steps: int,
    lr: float,
    loss: float,
    batch_updates: Sequence[Tensor] = (),
) -> Message:
    """The result of a training loop of one's own.

    Args:
        message: the message that is answered; its ``arrays`` are what training started from.
        model: the trained model.
        site: this site.
        role: ``source`` or ``target``.
        num_examples: rows that took part.
        steps: optimiser steps taken, and
        lr: their learning rate, to bring updates of different lengths into one unit.
        loss: mean training loss.
        batch_updates: at the target, the change that each batch of one epoch made, as flat
            vectors; rules that weigh their trust need at least two.
    """
    layout = messages.Layout.of_model(model)
    start = layout.state(messages.tensors(message.content.array_records["arrays"]))
    vector = parameter_vector(model) - start.parameters
    stream = NoiseStream(Blocks.of_model(model), sketch=_sketch(message, model))
    for change in batch_updates:
        stream.add(change * steps)
    noise = stream.noise() if batch_updates else None
    outcome = Outcome(
        num_examples,
        steps,
        lr,
        loss,
        buffers=buffer_copies(model),
        noise=None if noise is None else noise.sigma2,
        batches=stream.count,
        sketches=torch.stack(stream.sketches) if stream.sketches else None,
    )
    delivery = Delivery(ClientResult(outcome, vector), {"values": vector})
    return Message(messages.train_reply(site, role, [delivery], {}), reply_to=message)


def reply_to_evaluate(
    message: Message, *, site: str, num_examples: int, loss: float, accuracy: float | None = None
) -> Message:
    """What a model is worth to the target; accuracy in percent."""
    work = messages.read(message.content.config_records["config"]["work"])
    if "decide" in work:
        raise messages.RequestError(
            "Expected the target to choose its model, as the method asks, but this site only "
            "measures: answer evaluate messages with reply_to_decide."
        )
    measured = Evaluation(Metrics(loss, accuracy))
    return Message(messages.evaluate_reply(site, num_examples, measured), reply_to=message)


def reply_to_decide(
    message: Message,
    context: Context,
    model: ModelMaker,
    *,
    site: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    n_classes: int | None,
    class_names: Sequence[str] | None = None,
) -> Message:
    """The target's answer to an evaluate message of any method, ``auto`` too.

    Where the method leaves the choice to the target, its candidates are fitted here, to its own
    rows, and the model that it chooses stays here; else the model of the message is measured.

    Args:
        message: the message that is answered.
        context: of the app; its node configuration may name a folder as ``memory``.
        model: makes the model, with whatever parameters.
        site: this site.
        train: its labelled rows and their labels.
        test: rows and labels to measure with.
        n_classes: None for regression.
        class_names: what the classes are called.
    """
    own, held_out = Site(site, *train), Site(f"{site} (test)", *test)
    names = None if class_names is None else tuple(class_names)
    local = LocalSite(site, "target", own, held_out, n_classes, names)
    return _measured(message, *_worker(message, context, lambda _: local, model))


def _measured(message: Message, worker: SiteWorker, work: dict[str, Any]) -> Message:
    """Measure the model of a message, or choose one and measure that."""
    site = worker.site
    if site.test is None:
        raise messages.RequestError(
            f"Expected to measure models at the target, but this is {site.name}."
        )
    number, facts = int(work["round"]), None
    if "decide" in work:
        told = message.content.array_records.get("news", ArrayRecord())
        news = News(messages.tensors(told), dict(work["decide"]))
        decision = worker.decide(number, news, known=bool(work.get("known", False)))
        assert decision.state is not None
        assert decision.evaluation is not None
        chosen: Model = decision.state
        facts, evaluation = decision.facts, decision.evaluation
    else:
        chosen = worker.own_model(number) or _states(message, worker.layout)[0]
        evaluation = worker.evaluate(number, chosen)
    if worker.measures:
        evaluation = Evaluation(None)
    absent = [name for name in worker.spec.sources if name in work.get("absent", ())]
    worker.keep(number, chosen, evaluation, facts, absent)
    if worker.privacy is not None:
        reply = messages.evaluate_reply(site.name, len(site.test), Evaluation(None))
    else:
        reply = messages.evaluate_reply(site.name, len(site.test), evaluation, facts)
    return Message(reply, reply_to=message)


def _sketch(message: Message, model: nn.Module) -> Sketch | None:
    """A sketch of the noise, where the coordinator's rule needs its directions."""
    work = messages.read(message.content.config_records["config"]["work"])
    if work["jobs"][0]["plan"]["noise"] != "sketch":
        return None
    settings = messages.RunSpec.of_json(work["spec"]).run_settings()
    return Sketch(Blocks.of_model(model), size=settings.sketch_size)


def _worker(
    message: Message, context: Context, load: Loader, model: ModelMaker | None
) -> tuple[SiteWorker, dict[str, Any]]:
    torch.set_num_threads(1)
    simulated = "partition-id" in context.node_config
    floors = OPEN if simulated else floors_in(context.node_config)
    floors.check_records(len(message.content))
    work = messages.read(message.content.config_records["config"]["work"])
    spec = messages.RunSpec.of_json(work["spec"])
    site = load(context)
    privacy, budget = privacy_in(context.node_config)
    home = None if simulated else site_folder()
    memory = SiteMemory(_folder(context, site.name), spec.run, site.name, home)
    worker = SiteWorker(
        site,
        spec,
        memory,
        model=model,
        privacy=privacy,
        budget=budget,
        floors=floors,
        device=_device(context),
        advises=simulated or context.node_config.get("advice") is True,
    )
    agreed = context.node_config.get("role", site.role)
    if agreed != site.role and not worker.measures:
        raise messages.RequestError(
            f"Expected {site.name!r} to be a {agreed}, but this run takes it for a {site.role}, as "
            f"only advice may."
        )
    return worker, work


def _device(context: Context) -> str:
    """What this site computes on, as only its own configuration says."""
    return str(context.node_config.get("device", CPU))


def site_folder() -> Path | None:
    """The folder of the deployment's site that this node was started for, if any."""
    named = os.environ.get(SITE_FOLDER)
    return Path(named) if named else None


def _folder(context: Context, site: str) -> Path:
    """Where the site remembers things; simulated sites share a place that the run names."""
    if "memory" in context.node_config:
        return Path(str(context.node_config["memory"])).expanduser()
    if "partition-id" in context.node_config and context.run_config.get("memory"):
        return Path(str(context.run_config["memory"])) / file_name(site)
    return default_folder() / file_name(site)


def _states(message: Message, layout: messages.Layout) -> list[State]:
    """The models of a message by slot."""
    found = message.content.array_records
    names = sorted(name for name in found if re.fullmatch(r"arrays(-\d+)?", name))
    return [layout.state(messages.tensors(found[name])) for name in names]
