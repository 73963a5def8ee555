"""A federation of real processes on loopback: the same result, and what happens when parts fail.

The long tests (``make test-deploy``) kill and restart real links and nodes.
"""

import os
import time
from pathlib import Path

import pytest
import torch
from flower.children import family, kill_link, kill_node, living, nodes_of
from flower.counting_proxy import CountingProxy
from real_data import needs
from small import blobs, same_model

import fedbridge as fb
from fedbridge.federation.groups import GROUP
from fedbridge.flower.localhost import Rehearsal
from fedbridge.flower.server import MODULE
from fedbridge.runs.folder import RunFolder

pytestmark = pytest.mark.deploy

ROUNDS = 3


def task(**options):
    """The hospitals where they are there, the embedded digits elsewhere."""
    try:
        return fb.load_task("heart", target="hungarian", seed=0, **options)
    except fb.errors.DataError:
        return fb.load_task("digits-noise", seed=0)


def largest_difference(ours, theirs):
    """Between models, and between whatever numbers two histories hold beside times and bytes."""
    pairs = zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True)
    differences = [float((a - b).abs().max()) for a, b in pairs]

    def flat(value):
        if isinstance(value, dict):
            return [number for item in value.values() for number in flat(item)]
        if isinstance(value, list):
            return [number for item in value for number in flat(item)]
        return [value]

    for mine, other in zip(ours.history, theirs.history, strict=True):
        for key in mine:
            if key.startswith(("seconds", "bytes")):
                continue
            for a, b in zip(flat(mine[key]), flat(other[key]), strict=True):
                if isinstance(a, float) and isinstance(b, float):
                    differences.append(abs(a - b))
                else:
                    assert a == b, key
    return max(differences)


@pytest.mark.parametrize("engine", ["flower", "flower-sim"])
def test_the_same_model_and_history_as_in_one_process(engine, tmp_path):
    """With ``flower`` over TLS, every node with a registered key and every role pinned to it."""
    data = task(sources=["cleveland", "va"])
    local = fb.run(data, "auto", ROUNDS, workers=1)
    rounds = []
    remote = fb.run(
        data, "auto", ROUNDS, engine=engine, out=tmp_path / "run", callbacks=[rounds.append]
    )
    assert largest_difference(local, remote) <= 1e-6
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert (tmp_path / "run" / "report.html").exists()
    assert not [line["failures"] for line in remote.history if line["failures"]]


def test_more_nodes_than_updates_are_held_at_a_time_run_in_the_simulation(tmp_path):
    """``benchmarks/simulated_nodes.py`` has 200 of them, and a larger model."""
    data, options = blobs(sources=GROUP + 2, rows=6), {"model": "linear", "batch_size": 8}
    local = fb.run(data, "fedavg", 1, workers=1, **options)
    remote = fb.run(data, "fedavg", 1, engine="flower-sim", out=tmp_path / "run", **options)
    assert largest_difference(local, remote) <= 1e-6
    assert remote.history[0]["failures"] == {}


def test_a_model_of_the_targets_own_comes_from_its_folder_into_that_of_a_run_on_one_machine(
    tmp_path,
):
    """Heads of all sites stay with them, through the processes of every round."""
    data = task(sources=["cleveland", "va"])
    options = {"model": "mlp:8", "lr": 0.1}
    local = fb.run(data, "fedrep", 2, workers=1, **options)
    remote = fb.run(data, "fedrep", 2, engine="flower", out=tmp_path / "run", **options)
    assert largest_difference(local, remote) <= 1e-6
    assert same_model(fb.load_run(tmp_path / "run").model, local.model)


class Watch:
    """Does things to a cluster while a run goes on: once, when so many rounds are written."""

    def __init__(self, folder, deeds):
        self.folder, self.deeds = folder, list(deeds)
        self.since = None

    def __call__(self, state=None):
        if not self.deeds:
            return
        rounds, wait, deed = self.deeds[0]
        if len(self.folder.history()) < rounds:
            return
        self.since = self.since or time.monotonic()
        if time.monotonic() - self.since >= wait:
            self.deeds.pop(0)
            self.since = None
            deed()


def rehearse(tmp_path, method, rounds, *, data=None, **options):
    folder = RunFolder(tmp_path / "run")
    chosen = task() if data is None else data
    return Rehearsal(chosen, method, rounds, 0, folder, tmp_path / "scratch", "flower", options)


def long_test(function):
    """A test that takes minutes."""
    return pytest.mark.long(function)


@long_test
def test_a_source_that_is_killed_in_a_round_and_never_comes_back(tmp_path):
    here = rehearse(tmp_path, "auto", 4, timeout=60)
    with here.cluster() as cluster:
        cluster.start()
        gone = here.task.source_names[1]
        watch = Watch(here.run_folder, [(1, 1.0, lambda: kill_node(cluster, gone))])
        assert cluster.run_app(here.app(), on_tick=watch).status == "completed"
    lines = here.run_folder.history()
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["failures"] == {}
    assert all(gone in line["failures"] for line in lines[2:])
    assert all(line["accuracy"] is not None for line in lines)


@long_test
def test_a_target_that_is_killed_and_restarted_as_a_new_node(tmp_path):
    here = rehearse(tmp_path, "auto", 5, timeout=60, wait=240)
    target = here.task.target.name
    with here.cluster(secure=False) as cluster:
        cluster.start()
        before = {node.node_id for node in nodes_of(cluster)}

        def restart():
            kill_node(cluster, target)
            cluster.start_nodes(target)

        watch = Watch(here.run_folder, [(1, 1.0, restart)])
        assert cluster.run_app(here.app(secure=False), on_tick=watch).status == "completed"
        assert {node.node_id for node in nodes_of(cluster)} - before
    lines = here.run_folder.history()
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert any(target in line["failures"] or line["notes"] for line in lines)
    assert lines[-1]["failures"] == {}
    assert lines[-1]["accuracy"] is not None


SLOW_CLIENT = '''
import time
from pathlib import Path

from fedbridge.engines.flower import client_app
from fedbridge.flower.client import load_own_site


def load(context):
    """Take long while there is a file that says so."""
    while Path(str(context.node_config["data"]) + ".slow").exists():
        time.sleep(0.2)
    return load_own_site(context)


app = client_app(load=load)
'''


@long_test
def test_a_slow_source_costs_itself_the_round(tmp_path):
    here = rehearse(tmp_path, "fedda", 3, timeout=30)
    slow = here.task.source_names[0]
    app = here.app()
    (app / MODULE / "client_app.py").write_text(SLOW_CLIENT)
    with here.cluster() as cluster:
        cluster.start()
        brake = Path(f"{cluster.sites[slow]['data']}.slow")
        watch = Watch(here.run_folder, [(1, 0.0, brake.touch), (2, 0.0, brake.unlink)])
        assert cluster.run_app(app, on_tick=watch).status == "completed"
    lines = here.run_folder.history()
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[1]["failures"] == {slow: "no answer within 30 seconds"}
    assert lines[2]["failures"] == {}
    assert all(line["accuracy"] is not None for line in lines)


@long_test
def test_a_link_that_is_killed_and_restarted_resumes_with_the_right_round(tmp_path):
    here = rehearse(tmp_path, "auto", 4)
    with here.cluster() as cluster:
        cluster.start()
        watch = Watch(here.run_folder, [(2, 1.0, lambda: kill_link(cluster))])
        assert cluster.run_app(here.app(), on_tick=watch).status == "lost"
        assert 2 <= len(here.run_folder.history()) < 4
        cluster.start_link()
        assert cluster.run_app(here.app()).status == "completed"
    resumed = here.result(kept=True)
    assert [line["round"] for line in resumed.history] == [1, 2, 3, 4]
    assert same_model(resumed.model, fb.run(here.task, "auto", 4, workers=1).model)


@long_test
def test_a_resnet_of_four_sites_and_its_bytes(tmp_path):
    """11 million parameters in one round; the history's bytes are those on the wire."""
    generator = torch.Generator().manual_seed(0)

    def site(count):
        x = torch.rand(count, 3, 32, 32, generator=generator)
        return x, torch.arange(count) % 4

    data = fb.FederatedTask.from_arrays(
        sources={name: site(16) for name in "ABC"}, target=site(16), test=site(16)
    )
    here = rehearse(
        tmp_path, "fedda-joint", 1, data=data, model="resnet18", batch_size=8, timeout=600
    )
    with here.cluster() as cluster:
        cluster.start_link()
        direct = cluster.address
        proxy = CountingProxy(direct)
        cluster.address = proxy.address
        cluster.start_nodes()
        cluster.address = direct
        state = cluster.run_app(here.app())
        assert state.status == "completed", state.details
        proxy.close()
    (line,) = here.run_folder.history()
    assert line["failures"] == {}
    assert line["bytes_down"] > 5 * 4 * 11_000_000
    assert line["bytes_up"] == pytest.approx(proxy.up, rel=0.05)
    assert line["bytes_down"] == pytest.approx(proxy.down, rel=0.05)


@long_test
def test_a_proxy_that_cuts_idle_connections_is_got_over(tmp_path):
    """Every site works for longer than the proxy lets its connection rest."""
    here = rehearse(tmp_path, "fedda", 3, timeout=300)
    with here.cluster() as cluster:
        cluster.start_link()
        direct = cluster.address
        proxy = CountingProxy(direct, idle=2.5)
        cluster.address = proxy.address
        cluster.start_nodes()
        cluster.address = direct
        state = cluster.run_app(here.app())
        assert state.status == "completed", state.details
        proxy.close()
    assert proxy.cuts > 0
    assert [line["failures"] for line in here.run_folder.history()] == [{}, {}, {}]
    assert same_model(here.result(kept=True).model, fb.run(here.task, "fedda", 3, workers=1).model)


@long_test
@needs("heart")
def test_the_command_line_leaves_nothing_behind(tmp_path):
    from fedbridge.cli.main import main

    before = family(os.getpid())
    words = "run heart --target va --engine flower --rounds 1 --method fedda --quiet --out"
    code = main([*words.split(), str(tmp_path / "run")])
    assert code == 0
    assert not living({*family(os.getpid())} - {*before})
