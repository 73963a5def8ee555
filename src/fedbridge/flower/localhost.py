"""A run over Flower on this machine: what a federation of real sites does, before there are any.

Every site is a process of its own that reads nothing but its own file. ``flower`` starts a link
and nodes that talk over TLS with registered keys; ``flower-sim`` is Flower's simulation.
"""

from __future__ import annotations

import tempfile
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file

from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import file_name, to_json, write_atomically
from fedbridge.core.blocks import buffer_copies, parameter_vector
from fedbridge.data.site_package import save_site, sites_of
from fedbridge.federation.follow import Audience
from fedbridge.federation.loop import RunResult
from fedbridge.federation.needs import Need
from fedbridge.federation.settings import RECORD
from fedbridge.flower.cluster import KEYS, Cluster, Simulation
from fedbridge.flower.floors import OPEN
from fedbridge.flower.options import NETWORK, PRIVACY, ConfigValue, config_key
from fedbridge.flower.privacy import privacy_in
from fedbridge.flower.programs import tail
from fedbridge.flower.server import app_files, strategy_of
from fedbridge.flower.site import MODEL
from fedbridge.methods import (
    check_travels,
    class_of,
    decides_at_target,
    needs_of,
    usual_options,
)
from fedbridge.models import build_model, check_built_in
from fedbridge.report import write_model_card, write_report
from fedbridge.runs.folder import SITES, RunFolder, fingerprint
from fedbridge.runs.record import Tested, positive_measures, tested_on, write_tested
from fedbridge.training.accountant import Look, composed_epsilon
from fedbridge.training.record_privacy import RecordPrivacy
from fedbridge.training.state import State
from fedbridge.training.trainer import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from fedbridge.data.site_package import Role
    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.follow import Callback

DATA, FLOWER = "data", "flower"


class FlowerRunError(FedbridgeError):
    """A run over Flower did not come to its end."""


def run_here(
    task: FederatedTask,
    method: str,
    rounds: int,
    seed: int,
    engine: str,
    out: Path | None,
    *,
    resume: bool,
    callbacks: Sequence[Callback],
    options: dict[str, Any],
) -> RunResult:
    """Start everything, run, and leave nothing behind but the run's folder."""
    check_travels(method)
    with tempfile.TemporaryDirectory(prefix="fedbridge-") as scratch:
        folder = Path(scratch)
        run_folder = RunFolder((folder / "run" if out is None else out).absolute())
        run_folder.check_new(resume=resume)
        here = Rehearsal(task, method, rounds, seed, run_folder, folder, engine, options)
        with Audience(callbacks) as audience:
            follow = _WrittenRounds(run_folder, audience, kept=out is not None)
            here.run(follow)
            follow()
            result = here.result(kept=out is not None)
            audience.end(result.config, result.history, result.out, result.summary)
            return result


@dataclass
class Rehearsal:
    """A federation of real processes on this machine, for one run.

    Attributes:
        task: whose sites become processes.
        method, rounds, seed: of the run.
        run_folder: where the coordinator writes.
        folder: for everything that is not kept.
        engine: ``flower`` or ``flower-sim``.
        options: of the run, the network and the sites.
    """

    task: FederatedTask
    method: str
    rounds: int
    seed: int
    run_folder: RunFolder
    folder: Path
    engine: str
    options: dict[str, Any]

    def run(self, follow: Callable[[object], object]) -> None:
        """Start Flower, run the app, end Flower."""
        app = self.app()
        with self.cluster() as cluster:
            cluster.start()
            state = cluster.run_app(app, on_tick=follow)
            if state.status != "completed":
                raise FlowerRunError(
                    f"Expected the run to be completed, but it {state.status}: "
                    f"{reason_in(state.details, cluster.log('server-app'))}"
                )

    def cluster(self, *, secure: bool = True) -> Cluster:
        """Flower's processes, with a file of its own for every site."""
        nodes: dict[str, dict[str, ConfigValue]] = {}
        loose = Need.UNLABELLED in needs_of(self.method)
        for k, site in enumerate(sites_of(self.task, unlabelled=loose)):
            data = self.folder / DATA / f"site-{k}.safetensors"
            save_site(data, site)
            memory = self.run_folder.path / SITES / file_name(site.name)
            own = {**OPEN.config(), **self._privacy(site.role)}
            nodes[site.name] = {"data": str(data), "memory": str(memory), "advice": True, **own}
        folder = self.folder / FLOWER
        if self.engine == "flower":
            return Cluster(folder, nodes, secure=secure)
        return Simulation(folder, len(nodes))

    def app(self, *, secure: bool = True) -> Path:
        """The Flower app of the run, as a folder."""
        app, config = self.folder / "app", self._config(secure=secure)
        strategy_of(config)  # refuses before anything is started what it would refuse later
        for path, text in app_files(config).items():
            write_atomically(app / path, text)
        return app

    def _privacy(self, role: Role) -> dict[str, ConfigValue]:
        """What a site's configuration says of its privacy; the target's often nothing."""
        given = {k: v for k, v in self.options.items() if k in PRIVACY and v is not None}
        if given and self.engine != "flower":
            raise OptionError(
                "Expected differential privacy with the engine 'flower', where sites have settings "
                "of their own, or 'local', but got 'flower-sim'."
            )
        if "record_epsilon" in given:
            given.setdefault("record_rounds", self.rounds + self.options.get("warmup", 0))
        named = {config_key(name): value for name, value in given.items()}
        privacy, _ = privacy_in(named)
        if privacy is not None:
            composed_epsilon({Look(1.0, 1.0): 1}, privacy.delta)  # sites will need the accountant
        spared = isinstance(privacy, RecordPrivacy) and self.options.get("record_of") != "all"
        return {} if spared and role == "target" else named

    def result(self, *, kept: bool) -> RunResult:
        """What the coordinator wrote, with what it could not know."""
        folder = self.run_folder
        summary, history = folder.summary(), folder.history()
        if summary is None:
            raise FlowerRunError(
                f"Expected the coordinator to finish the run, but {folder.path} holds no summary."
            )
        config = folder.config()
        assert config is not None
        folder.unseal()
        folder.write_task(self.task, config)
        model = build_model(self.options.get("model") or self.task.model, self.task)
        tensors = load_file(self._model_file())
        model = class_of(self.method).restore(model, tensors)
        model.load_state_dict(tensors)
        tested = tested_on(self._outputs(model, history[-1]["round"]), self.task.test)
        summary |= positive_measures(tested, self.task)
        folder.write_result(model, summary, config)
        if kept:
            self._write_end(tested, summary)
            folder.seal()
        out = folder.path if kept else None
        return RunResult.of(self.task, history, summary, model, out, config)

    def _model_file(self) -> Path:
        """The coordinator's model or, where the target decides on one itself, the target's.

        That never leaves the target, but here its folder is at hand.
        """
        name, here = "model.safetensors", self.run_folder.path
        if not decides_at_target(self.method):
            return here / name
        kept = (here / SITES / file_name(self.task.target.name) / MODEL).rglob(name)
        return max(kept, key=lambda file: file.stat().st_mtime_ns, default=here / name)

    def _outputs(self, model: nn.Module, last: int) -> Tensor:
        """What the model says of the test rows, which are here, not at the coordinator."""
        bench = Workbench(deepcopy(model), self.task, seed=self.seed)
        state = State(parameter_vector(model), buffer_copies(model))
        return bench.predict(state, self.task.test, round=last)

    def _write_end(self, tested: Tested | None, summary: dict[str, Any]) -> None:
        """What a finished run has besides."""
        if tested is not None:
            write_tested(self.run_folder.path, tested)
        write_model_card(self.run_folder.path, summary)
        write_report(self.run_folder.path, unchecked=True)

    def _config(self, *, secure: bool) -> dict[str, ConfigValue]:
        given = {**usual_options(self.method, self.task, self.options), **self.options}
        model = given.pop("model", None) or self.task.model
        own = {name: given.pop(name) for name in NETWORK if name in given}
        about = {
            "positive": self.task.positive_name,
            "loaded_as": self.task.manifest.get("loaded_as"),
            "data_sha256": fingerprint(self.task),
            "engine": self.engine,
        }
        plain = {
            k: v for k, v in given.items() if k not in ("workers", "device", *PRIVACY, *RECORD)
        }
        return {
            "method": self.method,
            "rounds": self.rounds,
            "seed": self.seed,
            "target": self.task.target.name,
            "sites": to_json(list(self.task.source_names)),
            "model": check_built_in(model),
            "name": self.task.name,
            "out": str(self.run_folder.path),
            "secure": secure and self.engine == "flower",
            "keys": str(self.folder / FLOWER / KEYS),
            "data": str(self.folder / DATA),
            "memory": str(self.run_folder.path / SITES),
            "options": to_json(plain),
            "about": to_json(about),
            **{config_key(name): value for name, value in own.items()},
        }


class _WrittenRounds:
    """Tells of every round that the coordinator has written."""

    def __init__(self, folder: RunFolder, audience: Audience, *, kept: bool) -> None:
        self._folder, self._audience = folder, audience
        self._out = folder.path if kept else None
        self._seen = len(folder.history())

    def __call__(self, state: object = None) -> None:
        history = self._folder.history()
        for line in history[self._seen :]:
            self._audience.begin(self._folder.config() or {}, history[: self._seen], self._out)
            self._audience.tell(line)
        self._seen = max(self._seen, len(history))


def reason_in(details: str, log: Path) -> str:
    """Why a run ended, in one line: Flower's word, or the last lines of the coordinator's log."""
    lines = (line.strip() for line in tail(log, 5).splitlines())
    return details or " / ".join(filter(None, lines)) or "nothing is known of why."
