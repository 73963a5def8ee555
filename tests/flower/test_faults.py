"""Sites that fail, leave, come back or send nonsense: the run goes on, and the history says so."""

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from pretend import Node, PretendGrid, model_at_target, nodes_of, run_over_pretended_flower
from small import blobs, same_model

import fedbridge as fb
from fedbridge.flower.coordinator import TargetGoneError
from fedbridge.flower.messages import ReplyError, read, tensors
from fedbridge.methods import decides_at_target
from fedbridge.models import build_model

QUICK = {"model": "mlp:8", "lr": 0.1, "batch_size": 8}
FAST = {"timeout": 0.2, "wait": 0.2}


def run(method, tmp_path, change, rounds=3, task=None, **options):
    """A run in which ``change`` may do something to the grid beforehand."""
    task = blobs() if task is None else task
    grid = PretendGrid(nodes_of(task, tmp_path))
    change(grid)
    strategy, _ = run_over_pretended_flower(
        task, method, rounds, tmp_path, grid, **{**QUICK, **FAST, **options}
    )
    return strategy.result


def node(grid, name):
    return next(found for found in grid.nodes.values() if found.name == name)


def at_training(round, do):
    """Do something with the training message of one round, nothing with any other."""

    def spoil(question, answer):
        about = question.content.config_records.get("config", {})
        if question.metadata.message_type == "train" and about.get("server-round") == round:
            return do(question, answer)
        return answer

    return spoil


def at_deciding(round, do):
    """Do something with the message in which the target is to decide after one round, or any."""

    def spoil(question, answer):
        about = question.content.config_records.get("config", {})
        if "decide" in read(about.get("work", "{}")) and round in (about["server-round"], None):
            return do(question, answer)
        return answer

    return spoil


def test_a_source_that_dies_in_a_round_is_left_out_of_it(tmp_path):
    def change(grid):
        node(grid, "site 1").spoil = at_training(2, lambda question, answer: None)

    first, second, third = run("fedda-joint", tmp_path, change).history
    assert first["failures"] == {} == third["failures"]
    assert second["failures"] == {"site 1": "no answer within 0.2 seconds"}
    assert second["beta"][1] is None


def test_a_source_that_never_comes_back_is_named_in_every_round(tmp_path):
    def change(grid):
        def leave(question, answer):
            grid.leave("site 1")

        node(grid, "site 1").spoil = at_training(1, leave)

    lines = run("auto", tmp_path, change).history
    assert all("site 1" in line["failures"] for line in lines)
    assert lines[-1]["failures"]["site 1"] == "is not connected"
    assert lines[-1]["accuracy"] is not None


def test_a_source_that_joins_late_takes_part_from_then_on(tmp_path):
    task = blobs()
    nodes = nodes_of(task, tmp_path)

    def change(grid):
        grid.leave("site 1")

        def join(question, answer):
            grid.join(nodes[2])
            return answer

        node(grid, "site 0").spoil = at_training(1, join)

    first, second, _ = run("fedavg", tmp_path, change, task=task).history
    assert set(first["failures"]) == {"site 1"}
    assert second["failures"] == {}


@pytest.mark.parametrize(("method", "when"), [("fedda", at_training), ("auto", at_deciding)])
def test_a_target_that_is_restarted_as_a_new_node_goes_on(method, when, tmp_path):
    task = blobs()

    def change(grid):
        def restart(question, answer):
            grid.leave("target")
            grid.join(nodes_of(task, tmp_path)[0])

        node(grid, "target").spoil = when(2, restart)

    first, second, third = run(method, tmp_path, change, task=task).history
    assert any("target" in note for note in second["notes"])
    assert third["failures"] == {}
    assert third["accuracy"] is not None
    if method == "fedda":
        assert "target" in second["failures"]
        assert second["accuracy"] == first["accuracy"], "the model stayed as it was"
    else:
        assert "did not answer" in " ".join(second["notes"])
        assert second["accuracy"] is not None, "its own model is measured"
        assert third["cv_loss"]


def test_a_target_that_will_not_decide_ends_the_run_with_its_reason(tmp_path):
    settings = {"early_stopping": 9, "validation_fraction": 0.9}
    with pytest.raises(TargetGoneError, match="rows to choose by"):
        run("offset", tmp_path, lambda grid: None, rounds=9, task=blobs(target_rows=24), **settings)


def test_a_target_whose_gradient_is_lost_decides_all_the_same(tmp_path):
    def change(grid):
        node(grid, "target").spoil = at_training(2, lambda question, answer: None)

    lines = run("auto", tmp_path, change).history
    assert all(line["cv_loss"] and line["accuracy"] is not None for line in lines)


@pytest.mark.parametrize("method", ["auto", "offset"])
def test_a_target_that_does_not_decide_keeps_and_measures_its_own_model(method, tmp_path):
    """The site has not heard what it would have decided on: the answer is lost on its way."""
    task = blobs()

    def change(grid):
        target = node(grid, "target")
        app = target.app

        def deaf(message, context):
            about = message.content.config_records.get("config", {})
            if about.get("server-round") == 2 and "decide" in read(about["work"]):
                raise MemoryError
            return app(message, context)

        target.app = deaf

    grid = PretendGrid(nodes_of(task, tmp_path / "a"))
    change(grid)
    strategy, _ = run_over_pretended_flower(
        task, method, 2, tmp_path / "a", grid, **{**QUICK, **FAST}
    )
    first, second = strategy.result.history
    assert any("stays as it was" in note for note in second["notes"])
    assert (second["accuracy"], second["loss"]) == (first["accuracy"], first["loss"])
    shorter = run_over_pretended_flower(task, method, 1, tmp_path / "b", **QUICK)[0]
    plain = build_model(QUICK["model"], task)
    kept, before = (
        model_at_target(found, folder, plain)
        for found, folder in ((strategy, tmp_path / "a"), (shorter, tmp_path / "b"))
    )
    assert same_model(kept, before)


@pytest.mark.parametrize("method", ["auto", "ditto", "apfl", "offset"])
def test_a_target_that_lost_its_memory_decides_from_the_news_alone(method, tmp_path):
    task = blobs()

    def change(grid):
        def restart(question, answer):
            grid.leave("target")
            grid.join(nodes_of(task, tmp_path / "elsewhere")[0])

        node(grid, "target").spoil = at_deciding(2, restart)

    _, second, third = run(method, tmp_path, change, task=task).history
    assert any("did not answer" in note for note in second["notes"])
    assert third["accuracy"] is not None
    if method == "auto":
        assert third["cv_loss"]
    lost = "target has lost what it kept of its own in earlier rounds, and begins that anew"
    assert third["notes"] == ([] if method == "offset" else [lost]), "a refit remembers nothing"


def test_a_site_that_lost_its_part_of_the_model_says_so_and_begins_it_anew(tmp_path):
    task = blobs()

    def change(grid):
        def restart(question, answer):
            grid.leave("site 1")
            grid.join(nodes_of(task, tmp_path / "elsewhere")[2])

        node(grid, "site 1").spoil = at_training(2, restart)

    first, second, third, fourth = run("fedrep", tmp_path, change, task=task, rounds=4).history
    assert "site 1" in second["failures"]
    assert any("site 1 has lost what it kept" in note for note in third["notes"])
    assert not [note for line in (first, fourth) for note in line["notes"] if "lost" in note]


@pytest.mark.parametrize(("method", "when"), [("fedda", at_training), ("auto", at_deciding)])
def test_a_target_that_stays_away_ends_the_run_and_keeps_what_there_is(method, when, tmp_path):
    task, out = blobs(), tmp_path / "run"

    def change(grid):
        def leave(question, answer):
            grid.leave("target")

        node(grid, "target").spoil = when(2, leave)

    with pytest.raises(TargetGoneError, match="resume"):
        run(method, tmp_path, change, task=task, out=out, rounds=9)
    resumed, _ = run_over_pretended_flower(
        task, method, 9, tmp_path, **{**QUICK, **FAST, "out": out}
    )
    assert [line["round"] for line in resumed.result.history] == list(range(1, 10))


@pytest.mark.parametrize("method", ["fedgp-joint", "auto", "fedrep"])
def test_a_coordinator_that_is_killed_resumes_to_the_same_bits(method, tmp_path):
    """The target is one round ahead of the checkpoint and does that round again."""
    task, out = blobs(target_rows=24), tmp_path / "run"

    class KilledError(Exception):
        pass

    def kill(question, answer):
        raise KilledError

    grid = PretendGrid(nodes_of(task, tmp_path))
    last = node(grid, "site 2")
    last.spoil = at_training(3, kill)
    with pytest.raises(KilledError):
        run_over_pretended_flower(task, method, 4, tmp_path, grid, **{**QUICK, "out": out})
    resumed, _ = run_over_pretended_flower(task, method, 4, tmp_path, **{**QUICK, "out": out})
    local = fb.run(task, method, 4, workers=1, **QUICK)
    found = resumed.result.model
    if decides_at_target(method):
        found = model_at_target(resumed, tmp_path, build_model(QUICK["model"], task))
    assert same_model(local.model, found)
    assert [line["round"] for line in resumed.result.history] == [1, 2, 3, 4]


@pytest.mark.parametrize("method", ["auto", "ditto", "apfl", "fedrep"])
def test_a_coordinator_that_is_killed_after_a_decision_resumes_to_the_same_bits(method, tmp_path):
    """The target has decided on a round of which the coordinator has no checkpoint."""
    task, out = blobs(target_rows=24), tmp_path / "run"

    class KilledError(Exception):
        pass

    def kill(question, answer):
        raise KilledError

    grid = PretendGrid(nodes_of(task, tmp_path))
    node(grid, "target").spoil = at_deciding(3, kill)
    with pytest.raises(KilledError):
        run_over_pretended_flower(task, method, 4, tmp_path, grid, **{**QUICK, "out": out})
    resumed, _ = run_over_pretended_flower(task, method, 4, tmp_path, **{**QUICK, "out": out})
    local = fb.run(task, method, 4, workers=1, **QUICK)
    found = model_at_target(resumed, tmp_path, build_model(QUICK["model"], task))
    assert same_model(local.model, found)
    for key in ("loss", "cv_loss"):
        assert [line.get(key) for line in resumed.result.history] == [
            line.get(key) for line in local.history
        ]


def update_of(change):
    def spoil(question, answer):
        values = answer.content.array_records["update-0"]["values"].numpy()
        spoilt = change(torch.from_numpy(values.copy()))
        answer.content["update-0"] = ArrayRecord({"values": spoilt})
        return answer

    return spoil


def bytes_of(data):
    """Bytes where an array should be: the site's own choice, like all that it sends."""

    def spoil(question, answer):
        array = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data)
        answer.content["update-0"] = ArrayRecord({"values": array})
        return answer

    return spoil


def header(text):
    """A file of numpy's that says this of itself and then ends."""
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


def archive():
    file = io.BytesIO()
    np.savez(file, values=np.zeros(3))
    return file.getvalue()


def of_another_kind(name, record):
    def spoil(question, answer):
        answer.content[name] = record
        return answer

    return spoil


ENDLESS = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }"
NO_ARRAYS = {
    "no bytes": b"",
    "a pickle": b"\x80\x04K\x01.",
    "an archive": archive(),
    "half a header": header("{'descr': "),
    "more than any memory holds": header(ENDLESS),
    "more than has come": header(ENDLESS.replace("1000000000000000", "1000")) + bytes(400),
    "less than has come": header(ENDLESS.replace("1000000000000000", "10")) + bytes(400),
}


def scalar_of(name, value):
    def spoil(question, answer):
        answer.content["metrics-0"] = MetricRecord({**answer.content["metrics-0"], name: value})
        return answer

    return spoil


def without(name):
    def spoil(question, answer):
        del answer.content[name]
        return answer

    return spoil


def many_more(question, answer):
    for k in range(3000):
        answer.content[f"update-{k + 1}"] = answer.content["update-0"]
    return answer


def epsilon_of(value):
    def spoil(question, answer):
        answer.content["site"]["epsilon"] = value
        return answer

    return spoil


def strange_buffers(question, answer):
    answer.content["buffers-0"] = ArrayRecord({f"b{k}": torch.ones(1) for k in range(3000)})
    return answer


HOSTILE = {
    "3000 records more": many_more,
    "a record under another number": of_another_kind("update-00", ArrayRecord()),
    "3000 buffers more": strange_buffers,
    "a negative epsilon": epsilon_of(-5.0),
    "an epsilon that is NaN": epsilon_of(float("nan")),
    "an epsilon that is a text": epsilon_of("none"),
    "NaN": update_of(lambda v: v * torch.nan),
    "Inf": update_of(lambda v: v + torch.inf),
    "a shape that broadcasts": update_of(lambda v: v[:1]),
    "two dimensions": update_of(lambda v: v[None]),
    "float64": update_of(lambda v: v.double()),
    "too long": update_of(lambda v: v + 1e6),
    "no steps": scalar_of("steps", 0),
    "other steps": scalar_of("steps", 10**6),
    "a learning rate that blows updates up": scalar_of("lr", 1e-30),
    "negative samples": scalar_of("num-examples", -5),
    "no update": without("update-0"),
    "no scalars": without("metrics-0"),
    "no name": without("site"),
    "arrays that are texts": of_another_kind("update-0", ConfigRecord({"values": "x"})),
    "scalars that are arrays": of_another_kind("metrics-0", ArrayRecord({"steps": torch.ones(1)})),
    **{name: bytes_of(data) for name, data in NO_ARRAYS.items()},
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_bad_reply_is_dropped_and_named_and_the_round_goes_on(hostile, tmp_path):
    def change(grid):
        node(grid, "site 1").spoil = at_training(1, HOSTILE[hostile])

    def absent(grid):
        node(grid, "site 1").spoil = at_training(1, lambda question, answer: None)

    spoilt = run("fedavg", tmp_path, change, rounds=1, norm_bound=1e3)
    (line,) = spoilt.history
    assert set(line["failures"]) == {"site 1"}
    assert "refused" in line["failures"]["site 1"]
    assert same_model(spoilt.model, run("fedavg", tmp_path, absent, rounds=1).model)


def at_measuring(do):
    """Do something with every answer to a measuring message, nothing with any other."""
    return lambda question, answer: (
        do(question, answer) if question.metadata.message_type == "evaluate" else answer
    )


def measure_of(name, value):
    def spoil(question, answer):
        answer.content["metrics"][name] = value
        return answer

    return spoil


def every_weight(value):
    def spoil(question, answer):
        number = len(answer.content["metrics"]["weights"])
        return measure_of("weights", [value] * number)(question, answer)

    return spoil


BAD_CHOICES = {
    "a model": of_another_kind("arrays", ArrayRecord({"x": torch.ones(1)})),
    "texts": of_another_kind("metrics", ConfigRecord({"x": "y"})),
    "more than everything right": measure_of("accuracy", 900.0),
    "no number of percent": measure_of("accuracy", float("nan")),
    "an area below 0": measure_of("auc", -0.5),
    "losses of nobody": measure_of("held-out-losses", [1.0]),
    "losses that are a number": measure_of("held-out-losses", 1.0),
    "errors of nobody": measure_of("held-out-errors", [1.0]),
    "weights of nobody": measure_of("weights", [1.0]),
    "weights below 0": every_weight(-1.0),
    "weights above 1": every_weight(1e300),
    "weights that are NaN": every_weight(float("nan")),
    "candidates without losses": measure_of("held-out-losses", []),
}


@pytest.mark.parametrize("bad", BAD_CHOICES)
def test_a_bad_choice_of_the_target_is_not_believed(bad, tmp_path):
    def change(grid):
        node(grid, "target").spoil = at_deciding(None, BAD_CHOICES[bad])

    done = run("auto", tmp_path, change, rounds=2)
    for line in done.history:
        assert any("target: its reply was refused" in note for note in line["notes"])
        assert any("stays as it was" in note for note in line["notes"])
        assert line["accuracy"] is None or 0 <= line["accuracy"] <= 100
        assert "choice" not in line
    assert all(bool(value.isfinite().all()) for value in done.model.state_dict().values())


@pytest.mark.parametrize("measure", [("accuracy", 900.0), ("balanced-accuracy", -1.0)])
def test_measures_that_cannot_be_are_not_believed(measure, tmp_path):
    def change(grid):
        node(grid, "target").spoil = at_measuring(measure_of(*measure))

    done = run("fedavg", tmp_path, change, rounds=1)
    assert done.accuracy is None
    assert measure[0] in " ".join(done.history[0]["notes"])


def test_what_the_target_calls_its_choice_is_made_printable(tmp_path):
    def shout(question, answer):
        answer.content["site"]["choice"] = "\x1b[31mred\n" + "x" * 100
        answer.content["site"]["said"] = "\x1b[31mred\n" + "x" * 1000
        return answer

    def change(grid):
        node(grid, "target").spoil = at_deciding(None, shout)

    (line,) = run("auto", tmp_path, change, rounds=1).history
    assert line["choice"].isprintable()
    assert line["said"].isprintable()
    assert len(line["choice"]) <= 80
    assert len(line["said"]) <= 400


@pytest.mark.parametrize("code", [4, 5, 8])
def test_a_target_whose_process_is_gone_costs_the_round_and_not_the_run(code, tmp_path):
    def gone(question, answer):
        return Message(Error(code=code, reason="ClientApp stopped responding."), reply_to=question)

    def change(grid):
        node(grid, "target").spoil = at_training(1, gone)

    first, second = run("fedda", tmp_path, change, rounds=2).history
    assert first["failures"] == {"target": "ClientApp stopped responding."}
    assert second["failures"] == {}


def test_an_update_far_longer_than_the_others_is_dropped_if_asked(tmp_path):
    def change(grid):
        node(grid, "site 1").spoil = at_training(1, update_of(lambda v: 1000 * v))

    (line,) = run("auto", tmp_path, change, rounds=1, norm_ratio=10.0).history
    assert "times as long as the median" in line["failures"]["site 1"]
    assert line["beta"][1] is None


@pytest.mark.parametrize("change", [lambda v: 1e4 * v, lambda v: v.sign() * 1e30])
def test_an_absurd_update_is_left_out_without_being_asked(change, tmp_path):
    def spoil(grid):
        node(grid, "site 1").spoil = at_training(1, update_of(change))

    first, second = run("fedavg", tmp_path, spoil, rounds=2).history
    assert "times as long as the median" in first["failures"]["site 1"]
    assert second["failures"] == {}


def test_text_from_a_site_is_made_printable(tmp_path):
    def shout(question, answer):
        del answer.content["update-0"]
        answer.content["site"]["failure"] = "\x1b[31mred\nalert\x00" + "x" * 1000
        return answer

    def change(grid):
        node(grid, "site 1").spoil = at_training(1, shout)

    (line,) = run("fedavg", tmp_path, change, rounds=1).history
    assert line["failures"]["site 1"].isprintable()
    assert len(line["failures"]["site 1"]) <= 400


def test_an_error_at_a_site_costs_it_the_round(tmp_path):
    def change(grid):
        site = node(grid, "site 1")
        app = site.app

        def broken(message, context):
            if message.metadata.message_type == "train":
                raise MemoryError("of Ada Lovelace")
            return app(message, context)

        site.app = broken

    lines = run("fedavg", tmp_path, change, rounds=2).history
    assert all(set(line["failures"]) == {"site 1"} for line in lines)


@pytest.mark.parametrize("lr", [1e10, 1e30])
def test_a_target_whose_networks_diverge_decides_on_something_else(lr, tmp_path):
    for line in run("auto", tmp_path, lambda grid: None, rounds=5, lr_target=lr).history:
        assert "stays as it was" not in " ".join(line["notes"])
        assert line["accuracy"] > 50


def test_nodes_of_other_names_do_not_disturb(tmp_path):
    def change(grid):
        stranger = nodes_of(blobs(sources=5), tmp_path)[-1]
        grid.join(Node("stranger", stranger.app, stranger.config))

    lines = run("fedavg", tmp_path, change, rounds=2).history
    assert [line["failures"] for line in lines] == [{}, {}]


def test_no_room_is_made_for_what_a_header_says(monkeypatch):
    monkeypatch.setattr(Array, "numpy", lambda self: pytest.fail("the array was opened"))
    forged = Array("float32", (10**9,), "numpy.ndarray", header(ENDLESS.replace("0" * 6, "")))
    with pytest.raises(ReplyError, match="cannot be read"):
        tensors(ArrayRecord({"values": forged}))


def metric_of(**values):
    def spoil(question, answer):
        answer.content["metrics"] = MetricRecord({**answer.content["metrics"], **values})
        return answer

    return spoil


def many_candidates(question, answer):
    answer.content["site"]["candidates"] = [str(k) for k in range(3000)]
    return metric_of(**{"held-out-losses": [1.0] * 3000})(question, answer)


def with_an_update(question, answer):
    answer.content["update-0"] = ArrayRecord({"values": torch.ones(3)})
    return answer


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (metric_of(loss=-5.0), "loss of -5 is below 0"),
        (many_candidates, "too many models"),
        (with_an_update, "nobody asked for"),
    ],
)
def test_a_measurement_holds_what_was_asked_for(do, says, tmp_path):
    def change(grid):
        node(grid, "target").spoil = at_measuring(do)

    (line,) = run("auto", tmp_path, change, rounds=1).history
    assert any(says in note for note in line["notes"])
