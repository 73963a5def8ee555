"""What fedbridge costs, as ratios to what nobody can do without; all measured in one run.

- **rules**: aggregation, end to end, over the two bare passes over memory ``S @ t`` and ``w @ S``;
  for more sources and for longer models (**growth**). Processor time of one thread, the least of
  some tries, so that other work on the machine hardly counts; memory is the peak beyond the
  resulting vector, relative to the updates (Linux), the least of three.
- **round**: a round with two workers over a plain PyTorch loop of the busier worker's steps, two
  such loops at once, since two busy cores are slower than one. Medians of alternating repetitions.
- **flower**: a round of Flower's own simulation with its FedAvg over one of ours with the same
  model, data and number of processes.
- **many**: a round of a thousand sources, of which a tenth or all take part, and the peak of memory
  beside that of the updates.
- **methods**: a round of every method over one of ``fedavg``, each in a process of its own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.core.aggregate import aggregate
from fedbridge.core.rules import names as rule_names
from fedbridge.data.load import load_task
from fedbridge.data.rows import whole
from fedbridge.data.task import FederatedTask, Site
from fedbridge.federation.federation import Federation
from fedbridge.federation.settings import Settings
from fedbridge.methods import make, needs_of
from fedbridge.methods import names as method_names
from fedbridge.models import build_model
from fedbridge.report.benchmarks import PARTS, Benchmarks
from fedbridge.training.trainer import one_thread
from fedbridge.workflows.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from torch import Tensor

    Tell = Callable[[float, str], object]

COUNTS = (10, 50, 200, 1000)
LENGTHS = (1_000_000, 3_000_000, 10_000_000)
GROWING = ("fedda", "fedda-auto", "fedgp-auto", "fltrust", "zeno", "fedda-joint", "fedgp-joint")
ROUND_METHODS = ("fedda", "fedgp-auto", "fedda-joint")
SOURCES, LABELLED, BATCH, BUSIER = 9, 100, 64, 5
BASELINE = "fedavg"
ANSWER = "measured: "
APART = "import sys; from fedbridge.workflows.bench import measure_here as m; m(*sys.argv[1:])"


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        entries: Numbers in all updates of a growth curve over sources.
        length: Entries of the model whose rules are compared.
        tries: Repetitions of anything short.
        images: Rows of a source in a round.
        rounds: Rounds that are timed.
        lengths: Of the growth curve over the model's size.
        methods: Whose rounds are timed.
        sources: Of the federation of very many.
    """

    entries: int = 44_426_000
    length: int = 11_700_000
    tries: int = 7
    images: int = 6000
    rounds: int = 5
    lengths: tuple[int, ...] = LENGTHS
    methods: tuple[str, ...] = ()
    sources: int = 1000


WHOLE = Size()
QUICK = Size(20_000_000, 2_000_000, 3, 640, 2, LENGTHS[:2], ("fedavg", "fedgp-auto", "auto"), 100)


def bench(
    parts: Sequence[str] = PARTS, *, quick: bool = False, tell: Tell = lambda _, __: None
) -> Benchmarks:
    """Measure; ``tell`` hears the share that is done and what is under way."""
    for part in parts:
        if part not in PARTS:
            raise OptionError(f"Expected parts among {', '.join(PARTS)}, but got {part!r}.")
    size = QUICK if quick else WHOLE
    found = Benchmarks(
        {
            "processor": _processor(),
            "cores": multiprocessing.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "quick": quick,
        }
    )
    asked = [part for part in PARTS if part in parts]
    for done, part in enumerate(asked):

        def heard(share: float, text: str, done: int = done) -> None:
            tell((done + share) / len(asked), text)

        heard(0.0, part)
        getattr(found, part).extend(MEASURES[part](size, heard))
    tell(1.0, "done")
    return found


def _processor() -> str:
    """The processor's name, as well as the system tells it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


# Aggregation against bare passes.


def _rules(size: Size, tell: Tell) -> list[dict[str, Any]]:
    """Every rule on ten models of a ResNet-18's size."""
    with one_thread():
        work = Updates(10, size.length)
        passes = work.bare(size.tries)
        found = []
        every = rule_names()
        for done, rule in enumerate(every):
            tell(done / len(every), f"{rule}: 10 x {size.length:,}")
            seconds = work.seconds(rule, size.tries)
            extra = work.extra_memory(rule)
            found.append({"rule": rule, "ratio": seconds / passes, "extra_memory": extra})
        return found


def _growth(size: Size, tell: Tell) -> list[dict[str, Any]]:
    """Some rules for ever more sources, and for ever longer models."""
    shapes = [("sources", n, size.entries // n) for n in COUNTS]
    shapes += [("length", 10, m) for m in size.lengths]
    found = []
    with one_thread():
        for done, (over, n, m) in enumerate(shapes):
            work = Updates(n, m)
            passes = work.bare(size.tries)
            for rule in GROWING:
                tell(done / len(shapes), f"{rule}: {n} x {m:,}")
                ratio = work.seconds(rule, max(2, size.tries // 2)) / passes
                extra = work.extra_memory(rule)
                row = {"over": over, "sources": n, "length": m, "rule": rule, "ratio": ratio}
                found.append({**row, "extra_memory": extra})
    return found


class Updates:
    """Updates of a round, all of which have something of the target."""

    def __init__(self, n: int, m: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.sources = torch.empty(n, m).normal_(generator=generator)
        self.target = torch.empty(m).normal_(generator=generator).add_(self.sources[0], alpha=0.5)
        self.weights = torch.full((n,), 1 / n)

    def bare(self, tries: int) -> float:
        """Seconds of the two passes that no rule can do without."""
        return _least(lambda: (self.sources @ self.target, self.weights @ self.sources), 3 * tries)

    def seconds(self, rule: str, tries: int) -> float:
        """Seconds of a rule, end to end, with a known noise."""
        return _least(lambda: self._apply(rule), tries)

    def extra_memory(self, rule: str) -> float | None:
        """Peak memory beyond the result, over that of the updates.

        The least of some tries: now and then what was freed leaves a gap that is just too small.
        """
        peaks = [peak_bytes(lambda: self._apply(rule)) for _ in range(8)]
        known = [peak for peak in peaks if peak is not None]
        if not known:
            return None
        return max(0.0, min(known) / 4 - len(self.target)) / self.sources.numel()

    def _apply(self, rule: str) -> None:
        aggregate(rule, self.target, self.sources, sigma2=0.1 * len(self.target))


def _least(work: Callable[[], object], tries: int) -> float:
    """The least processor time of this thread over some tries."""
    times = []
    for _ in range(tries):
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


def peak_bytes(work: Callable[[], object]) -> int | None:
    """Peak memory of a call above what was there before; None where Linux cannot tell."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def said(name: str) -> int:
        line = next(ln for ln in status.read_text().splitlines() if ln.startswith(name))
        return int(line.split()[1]) * 1024

    work()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is taken now
    before = said("VmRSS")
    reset.write_text("5")
    work()
    return said("VmHWM") - before


# A round against the bare training loop, and against Flower.


@cache
def made_up(images: int) -> FederatedTask:
    """Random images of the right shapes: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)

    def site(name: str, count: int) -> Site:
        pixels = torch.rand(count, 1, 28, 28, generator=generator)
        return Site(name, pixels, torch.randint(10, (count,), generator=generator))

    sources = tuple(site(f"source {index}", images) for index in range(SOURCES))
    return FederatedTask("bench", sources, site("target", LABELLED), site("test", 100), 10)


def _plain_steps(model: torch.nn.Module, site: Site) -> None:
    """An epoch as anybody would write it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for rows in torch.randperm(len(site)).split(BATCH)[: len(site) // BATCH]:
        optimizer.zero_grad()
        functional.cross_entropy(model(site.x[rows]), site.y[rows]).backward()
        optimizer.step()


def _bare_loop(task: FederatedTask, pipe: Connection) -> None:
    """Wait for a signal, train the busier worker's sources, tell the time; again and again."""
    torch.set_num_threads(1)
    model = build_model("cnn", task)
    while pipe.recv():
        begun = time.perf_counter()
        for site in task.sources[:BUSIER]:
            _plain_steps(model, site)
        pipe.send(time.perf_counter() - begun)


def _round(size: Size, tell: Tell) -> list[dict[str, Any]]:
    """Rounds of some methods, and bare loops in turn."""
    task = made_up(size.images)
    context = multiprocessing.get_context("fork")
    pipes, loops = [], []
    for _ in range(2):
        ours, theirs = context.Pipe()
        loops.append(context.Process(target=_bare_loop, args=(task, theirs), daemon=True))
        loops[-1].start()
        pipes.append(ours)

    def bare() -> float:
        for pipe in pipes:
            pipe.send(True)
        return max(float(pipe.recv()) for pipe in pipes)

    found = []
    for done, name in enumerate(ROUND_METHODS):
        tell(done / len(ROUND_METHODS), f"rounds of {name}")
        with _TimedRounds(task, name) as rounds:
            bare()
            own, plain = _in_turn(rounds.next, bare, size.rounds)
        times = {"seconds": statistics.median(own), "bare": statistics.median(plain)}
        found.append({"method": name, **times, "ratio": _ratio(own, plain)})
    for pipe, loop in zip(pipes, loops, strict=True):
        pipe.send(False)
        loop.join()
    return found


class _TimedRounds:
    """Rounds of one method with two workers, one after the other."""

    def __init__(self, task: FederatedTask, method: str) -> None:
        settings = Settings(
            model="cnn",
            optimizer="adam",
            lr=0.001,
            batch_size=BATCH,
            batch_size_target=16,
            workers=2,
        )
        self.federation = Federation(task, build_model("cnn", task), settings, seed=0)
        self.method = make(method, self.federation, {})
        self.done = 0

    def __enter__(self) -> _TimedRounds:
        slots, rows = self.method.room()
        self.federation.open(slots=slots, rows=rows)
        self.method.begin(self.federation.initial)
        self.next()
        return self

    def __exit__(self, *_: object) -> None:
        self.federation.close()

    def next(self) -> float:
        """Seconds of the next round, training and aggregation."""
        self.done += 1
        begun = time.perf_counter()
        self.method.run_round(self.done)
        return time.perf_counter() - begun


def _in_turn(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of rounds of ours and of theirs, which take turns: a busy machine is so to both."""
    times = [(ours(), theirs()) for _ in range(rounds)]
    mine, other = (list(column) for column in zip(*times, strict=True))
    return mine, other


def _ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios of rounds that followed each other."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _flower(size: Size, tell: Tell) -> list[dict[str, Any]]:
    """FedAvg over the same sites: rounds of Flower's simulation and rounds of ours, in turn."""
    if importlib.util.find_spec("ray") is None:
        return []
    tell(0.0, "Flower's simulation starts")
    words = ("flower", str(size.images), str(size.rounds + 1))
    with (
        _Apart(*words) as simulation,
        _TimedRounds(made_up(size.images), BASELINE) as rounds,
    ):
        simulation.answer()  # the round in which Ray starts its processes
        tell(0.5, "rounds of Flower and of ours")
        ours, theirs = _in_turn(
            rounds.next, lambda: float(simulation.answer()["seconds"]), size.rounds
        )
    times = {"seconds": statistics.median(ours), "flower": statistics.median(theirs)}
    return [{"method": BASELINE, **times, "ratio": _ratio(theirs, ours)}]


def _in_flower(images: int, rounds: int) -> None:
    """Rounds of Flower's FedAvg, two clients at a time, each when a line says so."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's clients would wait for all others
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        task = made_up(images)
        number = int(context.node_config["partition-id"])
        site = (*task.sources, task.target)[number]
        model = build_model("cnn", task)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        _plain_steps(model, site)
        content = RecordDict()
        content["arrays"] = ArrayRecord(model.state_dict())
        content["metrics"] = MetricRecord({"num-examples": len(site)})
        return Message(content, reply_to=message)

    class Timed(FedAvg):
        begun = 0.0

        def configure_train(self, *given: Any) -> Any:
            sys.stdin.readline()
            self.begun = time.perf_counter()
            return super().configure_train(*given)

        def aggregate_train(self, *given: Any) -> Any:
            result = super().aggregate_train(*given)
            _tell_parent({"seconds": time.perf_counter() - self.begun})
            return result

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = build_model("cnn", made_up(BATCH))
        strategy = Timed(fraction_evaluate=0.0, min_available_nodes=SOURCES + 1)
        arrays = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=SOURCES + 1,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


# A thousand sources.


def finely_split(count: int) -> FederatedTask:
    """scikit-learn's digits at 28 x 28 pixels, dealt out to so many sources and a target."""
    drawn = load_task("digits-noise")
    rows = [_enlarged(site) for site in (*drawn.sources, drawn.target, drawn.test)]
    *shared, target, test = rows
    x, y = (torch.cat([site[k] for site in shared]) for k in range(2))
    take = torch.arange(2 * count) % len(x)
    parts = zip(x[take].split(2), y[take].split(2), strict=True)
    sources = tuple(Site(f"site {k:04}", own, labels) for k, (own, labels) in enumerate(parts))
    return FederatedTask("digits-finely", sources, Site("target", *target), Site("test", *test), 10)


def _enlarged(site: Site) -> tuple[Tensor, Tensor]:
    x = whole(site.x, "images").float()
    return functional.interpolate(x, size=(28, 28)), site.y


def _many(size: Size, tell: Tell) -> list[dict[str, Any]]:
    """Rounds of a thousand sources, each kind in a process of its own."""
    found = []
    kinds = [
        (name, share) for name in ("fedavg", "fedgp-auto", "fedda-joint") for share in (0.1, 1)
    ]
    for done, (name, share) in enumerate(kinds):
        tell(done / len(kinds), f"{name}, {share:.0%} of {size.sources} sources")
        cost = _apart("many", name, str(share), str(size.sources))
        found.append({"method": name, "participation": share, **cost})
    return found


def _one_of_many(method: str, participation: float, sources: int) -> dict[str, Any]:
    """Seconds of a round, and the peak of memory in bytes, this process's and what is shared."""
    task = finely_split(sources)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options: dict[str, Any] = {
        "model": "cnn",
        "participation": participation,
        "workers": 2,
        "warmup": 0,
    }
    result = run(task, method, rounds=3, **options)
    length = sum(p.numel() for p in result.model.parameters())
    return {
        "seconds": statistics.median(
            line["seconds_train"] + line["seconds_aggregate"] for line in result.history[1:]
        ),
        "updates": 4 * length * (round(participation * sources) + 1),
        "memory": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
    }


# What a round of every method costs.


def _methods(size: Size, tell: Tell) -> list[dict[str, Any]]:
    """Every method in a process of its own with one worker, beside FedAvg."""
    found = []
    names = size.methods or tuple(method_names())
    baseline = _apart("method", BASELINE, str(size.rounds + 1))
    for done, name in enumerate(names):
        tell(done / len(names), f"a round of {name}")
        cost = _apart("method", name, str(size.rounds + 1))
        needs = "; ".join(need.value for need in needs_of(name))
        row = {"method": name, "needs": needs, **cost}
        if "seconds" in cost:
            row["ratio"] = cost["seconds"] / baseline["seconds"]
        found.append(row)
    return found


def _one_method(method: str, rounds: int) -> dict[str, Any]:
    """Seconds of a round here, bytes of a round, and memory beyond the loaded task."""
    task = load_task("digits-noise")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        result = run(task, method, rounds=rounds, workers=1, warmup=0)
    except FedbridgeError as error:
        return {"error": str(error)}
    lines = result.history[1:]
    return {
        "seconds": statistics.median(ln["seconds_train"] + ln["seconds_aggregate"] for ln in lines),
        "bytes_up": statistics.mean(line["bytes_up"] for line in lines),
        "bytes_down": statistics.mean(line["bytes_down"] for line in lines),
        "memory": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
    }


class _Apart:
    """A process of its own that measures something and answers by lines of JSON."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __enter__(self) -> _Apart:
        self.errors = TemporaryFile()
        command = [sys.executable, "-c", APART, *self.words]
        self.process = subprocess.Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=self.errors, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # with its input at an end, it comes to its own
        self.errors.close()

    def answer(self) -> dict[str, Any]:
        """What it says next, once it is asked; what others print in it is passed over."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                found: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                return found
        self.errors.seek(0)
        said = (self.errors.read().decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise OptionError(f"Expected {' '.join(self.words)!r} to be measured, but it said: {said}")


def _apart(*words: str) -> dict[str, Any]:
    """Measure something in a process of its own."""
    with _Apart(*words) as process:
        return process.answer()


def _tell_parent(found: Mapping[str, Any]) -> None:
    """Answer as one of ``_Apart``."""
    sys.stdout.write(f"{ANSWER}{json.dumps(found)}\n")
    sys.stdout.flush()


def measure_here(what: str, *given: str) -> None:
    """The other end of ``_Apart``."""
    if what == "flower":
        images, rounds = map(int, given)
        _in_flower(images, rounds)
    elif what == "many":
        method, participation, sources = given
        _tell_parent(_one_of_many(method, float(participation), int(sources)))
    else:
        method, count = given
        _tell_parent(_one_method(method, int(count)))


MEASURES: Mapping[str, Callable[[Size, Tell], list[dict[str, Any]]]] = {
    "rules": _rules,
    "growth": _growth,
    "round": _round,
    "flower": _flower,
    "many": _many,
    "methods": _methods,
}
