"""Runs: their history and folder, killed and resumed to the same bits."""

import json
import multiprocessing
import os
import random
import time
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from small import Normed, blobs, line, same_but_for_seconds, same_model
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import OptionError, UnknownNameError, UnknownOptionError
from fedbridge.base.files import StorageError
from fedbridge.federation import loop
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.workflows.predict import load_model

QUICK = {"rounds": 4, "workers": 1, "model": "mlp:8", "lr": 0.1, "batch_size": 8}
PROMISED = [
    "round",
    "accuracy",
    "loss",
    "beta",
    "sigma2",
    "d2",
    "seconds_train",
    "seconds_eval",
    "bytes_up",
    "bytes_down",
    "balanced_accuracy",
    "auc",
    "cosine",
    "seconds_aggregate",
    "failures",
    "notes",
]


def test_history_has_one_line_per_round_with_what_is_promised():
    result = fb.run(blobs(), "fedda-auto", **QUICK)
    assert [line["round"] for line in result.history] == [1, 2, 3, 4]
    for round_line in result.history:
        assert set(PROMISED) <= set(round_line)
        assert len(round_line["beta"]) == len(round_line["d2"]) == len(round_line["cosine"]) == 3
        assert all(0 <= beta <= 1 for beta in round_line["beta"])


def test_accuracy_is_the_mean_of_the_last_five_rounds_and_never_the_best():
    result = fb.run(blobs(shift=1.0), "fedda", **{**QUICK, "rounds": 8})
    accuracies = [line["accuracy"] for line in result.history]
    assert result.accuracy == pytest.approx(sum(accuracies[-5:]) / 5)
    assert result.summary["accuracy_last"] == accuracies[-1]
    low, high = result.summary["accuracy_interval"]
    assert low < result.accuracy < high or result.accuracy == high == 100


def test_the_model_is_the_one_that_was_measured_last():
    task = blobs()
    result = fb.run(task, "fedgp", **QUICK)
    answers = result.model.eval()(task.test.x).argmax(1)
    accuracy = 100 * float((answers == task.test.y).double().mean())
    assert accuracy == pytest.approx(result.history[-1]["accuracy"])


def test_two_classes_have_an_auc_and_values_have_a_score():
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    y = (rows[:, 0] + torch.arange(60) % 3 > 1).long()
    two = fb.FederatedTask.from_arrays(
        sources=[(rows[:20], y[:20])], target=(rows[20:40], y[20:40]), test=(rows[40:], y[40:])
    )
    result = fb.run(two, "fedda", **QUICK)
    certainty = result.model(two.test.x).detach().diff(dim=1)[:, 0]
    auc = roc_auc_score(two.test.y, certainty)
    assert 0.5 < auc < 1
    assert result.history[-1]["auc"] == pytest.approx(auc)
    values = fb.run(line(), "fedda", **{**QUICK, "model": "linear"})
    assert values.accuracy is None
    assert values.history[-1]["accuracy"] is None
    assert values.summary["score"] == pytest.approx(-values.summary["loss"])


@pytest.mark.parametrize("method", ["fedda", "fedgp-auto", "auto"])
def test_any_number_of_workers_gives_the_same_bits(method):
    results = [fb.run(blobs(), method, **{**QUICK, "workers": workers}) for workers in (1, 2, 4)]
    for other in results[1:]:
        assert same_but_for_seconds(results[0].history, other.history)
        assert same_model(results[0].model, other.model)


def test_a_run_leaves_the_users_random_numbers_and_threads_alone():
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fb.run(blobs(), "auto", **QUICK)
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads


def test_warm_up_rounds_come_before_round_one():
    result = fb.run(blobs(), "target-only", **QUICK, warmup=2)
    assert [(ln["round"], ln["phase"]) for ln in result.history[:3]] == [
        (-1, "warm-up"),
        (0, "warm-up"),
        (1, "training"),
    ]
    assert result.summary["rounds"] == 4


def test_early_stopping_looks_at_validation_rows_only():
    task = blobs()
    for site in task.sources:
        site.y.copy_((site.y + 1) % 3)
    result = fb.run(task, "source-only", **{**QUICK, "rounds": 30}, early_stopping=2)
    losses = [ln["validation_loss"] for ln in result.history]
    assert result.summary["stopped_early"]
    assert len(losses) == losses.index(min(losses)) + 3
    best = result.history[losses.index(min(losses))]
    answers = result.model(task.test.x).argmax(1)
    assert 100 * float((answers == task.test.y).double().mean()) == pytest.approx(best["accuracy"])


def test_callbacks_see_every_round():
    seen = []
    fb.run(blobs(), "fedda", **QUICK, callbacks=[lambda ln: seen.append(ln["round"])])
    assert seen == [1, 2, 3, 4]


def test_a_run_folder_holds_all_its_files(tmp_path):
    out = tmp_path / "run"
    result = fb.run(blobs(), "fedda-joint", **QUICK, out=out)
    files = "config.toml history.jsonl summary.json model.safetensors manifest.json report.html"
    assert set(files.split()) <= {file.name for file in out.iterdir()}
    config = tomllib.loads((out / "config.toml").read_text())
    assert (config["format"], config["method"], config["rounds"]) == (1, "fedda-joint", 4)
    assert json.loads((out / "summary.json").read_text())["accuracy"] == result.accuracy
    lines = [json.loads(text) for text in (out / "history.jsonl").read_text().splitlines()]
    assert lines == json.loads(json.dumps(result.history))
    assert json.loads((out / "manifest.json").read_text())["target"]
    saved = load_file(out / "model.safetensors")
    assert all(torch.equal(saved[k], v) for k, v in result.model.state_dict().items())


def interrupted_after(round_number):
    def stop(round_line):
        if round_line["round"] == round_number:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedda", {}),
        ("fedda-joint", {"evidence": "init"}),
        ("fedavg", {"server_momentum": 0.9, "dropout": 0.2}),
        ("fedgp-auto", {"server_momentum": 0.5, "evidence": "init", "probe_batch_size": 3}),
        ("fedgp-auto", {"evidence": "init", "warmup": 2}),
        ("fedda-auto", {"evidence": "probe", "participation": 0.7, "dropout": 0.2}),
        ("auto", {"warmup": 1}),
        ("fedda", {"early_stopping": 3}),
    ],
)
@pytest.mark.parametrize("at", [-1, 1, 3])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, method, options, at):
    task, settings = blobs(), {**QUICK, **options}
    whole = fb.run(task, method, **settings, out=tmp_path / "whole")
    if any(ln["round"] == at for ln in whole.history):
        with pytest.raises(KeyboardInterrupt):
            fb.run(task, method, **settings, out=tmp_path / "b", callbacks=[interrupted_after(at)])
    again = fb.run(task, method, **settings, out=tmp_path / "b", resume=True)
    assert same_but_for_seconds(whole.history, again.history)
    assert same_model(whole.model, again.model)


@pytest.mark.parametrize(("pause", "rounds"), [(0.0, [1, 2, 3]), (1e9, [1, 3])])
@pytest.mark.parametrize("at", [3, None])
def test_of_quick_rounds_those_a_pause_apart_are_kept_and_the_last(
    tmp_path, monkeypatch, pause, rounds, at
):
    kept, save = [], RunFolder.save_checkpoint

    def watched(folder, checkpoint):
        kept.append((checkpoint.round, len(folder.history())))
        save(folder, checkpoint)

    monkeypatch.setattr(RunFolder, "save_checkpoint", watched)
    monkeypatch.setattr(loop, "PAUSE", pause)
    options = {**QUICK, "rounds": 3 if at is None else 4, "out": tmp_path / "run"}
    if at is None:
        fb.run(blobs(), "fedda", **options)
    else:
        with pytest.raises(KeyboardInterrupt):
            fb.run(blobs(), "fedda", **options, callbacks=[interrupted_after(at)])
    assert kept == [(number, number) for number in rounds]


def test_killed_at_any_moment_a_run_resumes_to_the_same_bits(tmp_path):
    options = {"rounds": 25, "model": "mlp:8", "workers": 2}
    whole = fb.run(blobs(), "auto", **{**options, "workers": 1})
    chance = random.Random(0)
    history = tmp_path / "killed" / "history.jsonl"
    on_disk = {**options, "out": history.parent, "resume": True}
    for _ in range(3):
        before = history.stat().st_size if history.exists() else 0
        process = multiprocessing.get_context("fork").Process(
            target=fb.run, args=(blobs(), "auto"), kwargs=on_disk
        )
        process.start()
        while process.is_alive() and not (history.exists() and history.stat().st_size > before):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.join()
    killed = fb.run(blobs(), "auto", **on_disk)
    assert same_but_for_seconds(whole.history, killed.history)
    assert same_model(whole.model, killed.model)


def test_resume_of_a_finished_run_returns_at_once(tmp_path, monkeypatch):
    first = fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    monkeypatch.setattr("fedbridge.federation.federation.Federation.open", None)
    again = fb.run(blobs(), "fedda", **QUICK, out=tmp_path, resume=True)
    assert again.history == json.loads(json.dumps(first.history))
    assert again.summary == json.loads(json.dumps(first.summary))
    assert same_model(first.model, again.model)


def test_a_finished_run_can_be_given_more_rounds(tmp_path):
    fb.run(blobs(), "auto", **QUICK, out=tmp_path / "a")
    longer = {**QUICK, "rounds": 6}
    grown = fb.run(blobs(), "auto", **longer, out=tmp_path / "a", resume=True)
    assert same_but_for_seconds(grown.history, fb.run(blobs(), "auto", **longer).history)


def test_a_folder_with_this_run_needs_resume(tmp_path):
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    with pytest.raises(RunFolderError, match="--resume"):
        fb.run(blobs(), "fedda", **QUICK, out=tmp_path)


@pytest.mark.parametrize("other", [{"seed": 1}, {"lr": 0.2}, {"beta": 0.25}])
def test_a_folder_with_another_run_is_refused(tmp_path, other):
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    with pytest.raises(RunFolderError, match="different"):
        fb.run(blobs(), "fedda", **{**QUICK, **other}, out=tmp_path, resume=True)


def test_other_data_are_another_run(tmp_path):
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    with pytest.raises(RunFolderError, match="data_sha256"):
        fb.run(blobs(seed=1), "fedda", **QUICK, out=tmp_path, resume=True)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="other files"):
        fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    assert [left.name for left in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_newer_format_is_a_clear_error(tmp_path):
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("format = 1", "format = 2"))
    with pytest.raises(RunFolderError, match="format 2"):
        fb.run(blobs(), "fedda", **QUICK, out=tmp_path, resume=True)


def test_a_damaged_checkpoint_costs_a_round_and_not_the_run(tmp_path):
    whole = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "b", callbacks=[interrupted_after(3)])
    max((tmp_path / "b" / "checkpoint").glob("*.safetensors")).write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        again = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "b", resume=True)
    assert same_but_for_seconds(whole.history, again.history)


def test_a_full_disk_stops_with_advice_and_resumes(tmp_path, monkeypatch):
    whole = fb.run(blobs(), "fedda", **QUICK)
    real, count = os.fsync, []

    def full_after_a_while(number):
        count.append(number)
        if len(count) > 8:
            raise OSError(28, "No space left on device")
        real(number)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_after_a_while)
        with pytest.raises(StorageError, match="free some space"):
            fb.run(blobs(), "fedda", **QUICK, out=tmp_path)
    again = fb.run(blobs(), "fedda", **QUICK, out=tmp_path, resume=True)
    assert same_but_for_seconds(whole.history, again.history)


def test_a_model_may_be_a_function_or_a_module():
    for model in (lambda task: nn.Linear(2, task.outputs), nn.Linear(2, 3)):
        assert fb.run(blobs(), "fedda", **{**QUICK, "model": model}).accuracy > 0


def test_a_model_that_is_an_object_is_described_in_the_folder_but_cannot_be_rebuilt(tmp_path):
    options = {**QUICK, "model": nn.Linear(2, 3), "out": tmp_path / "run"}
    fb.run(blobs(), "fedda", **options)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["model"]["name"] == "object torch.nn.modules.linear.Linear"
    fb.run(blobs(), "fedda", **options, resume=True)
    with pytest.raises(RunFolderError, match="module:function"):
        load_model(tmp_path / "run")


def test_a_model_of_the_wrong_size_is_refused():
    with pytest.raises(fb.FedbridgeError, match="3"):
        fb.run(blobs(), "fedda", **{**QUICK, "model": nn.Linear(2, 5)})


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"rounds": 0}, OptionError, "rounds"),
        ({"method": "fedgb"}, UnknownNameError, "fedgp"),
        ({"engine": "ray"}, OptionError, "engine"),
        ({"bata": 0.5}, UnknownOptionError, "beta"),
        ({"workers": 0}, OptionError, "workers"),
    ],
)
def test_wrong_arguments_say_what_is_expected(wrong, error, message):
    with pytest.raises(error, match=message):
        fb.run(blobs(), **{"method": "fedda", **QUICK, **wrong})


def test_fewer_target_samples_than_a_batch_train_in_one_batch():
    result = fb.run(blobs(), "fedda", **{**QUICK, "batch_size_target": 64})
    assert result.history[-1]["sigma2"] is None
    with pytest.raises(fb.FedbridgeError, match="B = 1"):
        fb.run(blobs(), "fedda-auto", **{**QUICK, "batch_size_target": 64})


def test_borrowed_noise_helps_where_one_batch_leaves_it_open():
    options = {**QUICK, "batch_size_target": 64, "noise_from": "borrowed"}
    assert fb.run(blobs(), "fedda-auto", **options).history[-1]["sigma2"] > 0


def test_a_run_that_fails_at_once_leaves_its_folder_free(tmp_path):
    with pytest.raises(OptionError, match="beta"):
        fb.run(blobs(), "fedgp", **QUICK, beta=1.4, out=tmp_path / "run")
    fb.run(blobs(), "fedgp", **QUICK, beta=0.4, out=tmp_path / "run")


def test_what_an_interrupted_first_write_leaves_is_no_obstacle(tmp_path):
    (tmp_path / ".config.toml.123.partial").write_text("form")
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path, resume=True)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_longer_run_killed_before_its_result_does_not_return_the_shorter_one(tmp_path):
    fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "a")
    old = {
        name: (tmp_path / "a" / name).read_bytes() for name in ("summary.json", "model.safetensors")
    }
    longer = {**QUICK, "rounds": 6}
    whole = fb.run(blobs(), "fedda", **longer, out=tmp_path / "a", resume=True)
    for name, content in old.items():
        (tmp_path / "a" / name).write_bytes(content)
    (tmp_path / "a" / "checksums.json").unlink()
    again = fb.run(blobs(), "fedda", **longer, out=tmp_path / "a", resume=True)
    assert again.summary["rounds"] == 6
    assert again.accuracy == whole.accuracy
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["rounds"] == 6
    with pytest.raises(OptionError, match="at least the 6"):
        fb.run(blobs(), "fedda", **{**QUICK, "rounds": 2}, out=tmp_path / "a", resume=True)


def test_the_model_comes_ready_for_use():
    assert not fb.run(blobs(), "fedda", **{**QUICK, "model": Normed()}).model.training


@pytest.mark.parametrize("method", ["fedgp", "auto"])
def test_batch_norm_copes_with_a_last_batch_of_one_row(method):
    options = {**QUICK, "model": Normed(), "batch_size_target": 11}
    assert fb.run(blobs(), method, **options).history[-1]["failures"] == {}


def test_one_beta_per_source_goes_with_partial_participation():
    result = fb.run(blobs(), "fedgp", **QUICK, participation=0.67, beta=[0.1, 0.2, 0.3])
    for round_line in result.history:
        seen = [
            value for value in zip(round_line["beta"], (0.1, 0.2, 0.3), strict=True) if value[0]
        ]
        assert len(seen) == 2
        assert all(used == pytest.approx(given) for used, given in seen)


@pytest.mark.parametrize("weights", [(1, 2, 1), [1, 2, 1], torch.tensor([1, 2, 1])])
def test_class_weights_may_be_any_list_of_numbers(weights):
    given = fb.run(blobs(), "fedda", **QUICK, class_weights=weights).model
    assert same_model(given, fb.run(blobs(), "fedda", **QUICK, class_weights=(1.0, 2.0, 1.0)).model)
    assert not same_model(given, fb.run(blobs(), "fedda", **QUICK).model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr_target": 0},
        {"batch_size_target": 0},
        {"epochs": 1.5},
        {"batch_size": "many"},
        {"workers": 1.5},
        {"lr": "fast"},
        {"momentum": 5},
        {"weight_decay": -1},
        {"early_stopping": True},
        {"device": "toaster"},
        {"seed": -1},
        {"rounds": 2.5},
        {"class_weights": [1, -1, 1]},
        {"class_weights": [1, "a", 1]},
        {"beta": "x"},
    ],
)
def test_options_of_the_wrong_kind_are_refused_before_anything_runs(wrong):
    name = {"lr_target": "learning rate", "batch_size_target": "batch_size"}
    option = next(iter(wrong))
    with pytest.raises(OptionError, match=name.get(option, option)):
        fb.run(blobs(), **{"method": "fedda", **QUICK, **wrong})


def test_numpy_numbers_are_numbers(tmp_path):
    options = {**QUICK, "rounds": np.int64(2), "lr": np.float64(0.1), "beta": np.array(0.5)}
    assert len(fb.run(blobs(), "fedda", **options, seed=np.int64(1), out=tmp_path).history) == 2


def test_a_task_may_be_a_path(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    for k, site in enumerate("abc"):
        np.savez(tmp_path / f"{site}.npz", X=x + k, y=y)
    with pytest.raises(fb.FedbridgeError, match="target"):
        fb.run(tmp_path, "fedda", **QUICK)
