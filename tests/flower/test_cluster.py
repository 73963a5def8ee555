"""Link and nodes as real processes: they work, they fail with clear words, and none is left.

Starting them is what takes time, so most tests share one cluster, with TLS and node keys; those
that take something away from it come last.
"""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from flower.children import (
    exit_code,
    family,
    forked,
    kill_link,
    kill_node,
    living,
    nodes_of,
    pid_of,
    pids_of,
    wait_until,
)
from flwr.proto.control_pb2 import StopRunRequest

from fedbridge.flower.cluster import Cluster, OperationError
from fedbridge.flower.pki import NODE, make_node_key, read_public_key, site_key

pytestmark = pytest.mark.deploy

APP = Path(__file__).parent / "tiny_app"
SITES = {name: {"site": name, "data": f'the file\'s "name" {name}'} for name in ("A", "B b")}
ONE_SITE = {"A": SITES["A"]}
FOR_EVER = {"nodes": 99}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), SITES, secure=True) as cluster:
        cluster.start()
        yield cluster


def run(cluster, out, **config):
    """The state after a run of the app, and what it wrote."""
    state = cluster.run_app(APP, {"out": str(out), **config})
    return state, json.loads(out.read_text()) if out.exists() else None


def test_nodes_know_what_they_were_told_and_have_the_names_and_keys_of_their_sites(
    cluster, tmp_path
):
    state, told = run(cluster, tmp_path / "out.json", payload=100_000)
    assert (state.status, state.details) == ("completed", "")
    answers = {answer["site"]: answer for answer in told["answers"]}
    assert answers == SITES
    keys = {name: site_key(cluster.keys, name).public for name in SITES}
    assert told["nodes"] == {name: read_public_key(key).decode() for name, key in keys.items()}
    assert 200_000 < state.bytes_to_nodes < 220_000
    assert 0 < state.bytes_from_nodes < 20_000
    assert "all nodes answered\n" in cluster.log("server-app").read_text()


def test_a_run_that_fails_says_why(cluster, tmp_path):
    state, _ = run(cluster, tmp_path / "no" / "folder", nodes=0)
    assert state.status == "failed"
    assert "No such file or directory" in state.details
    assert "Traceback" in cluster.log("server-app").read_text()


def test_a_run_can_be_stopped_on_the_way(cluster):
    def stop(state) -> None:
        if state.status == "running":
            with cluster.control() as control:
                control._client.StopRun(StopRunRequest(run_id=state.run_id))

    assert cluster.run_app(APP, FOR_EVER, on_tick=stop).status == "stopped"


def test_a_site_that_is_not_there_is_named(cluster):
    with pytest.raises(OperationError, match=r"one of the sites A, B b, but got 'b'"):
        cluster.log("b")


def test_a_node_that_left_comes_back_as_the_same_but_not_with_another_key(cluster):
    before = {node.node_id for node in nodes_of(cluster)}
    kill_node(cluster, "A", patience=10.0)
    cluster.start_nodes("A")
    assert {node.node_id for node in nodes_of(cluster)} == before

    kill_node(cluster, "A", patience=10.0)
    key = site_key(cluster.keys, "A").private
    key.rename(key.with_name("kept"))
    make_node_key(key.parent, NODE)
    with pytest.raises(OperationError, match=r"(?s)come online, but it ended.*node-A\.log"):
        cluster.start_nodes("A")


def test_a_lost_link_ends_the_run_and_comes_back_with_what_it_knew(cluster):
    before = {node.name for node in nodes_of(cluster)}
    state = cluster.run_app(APP, FOR_EVER, on_tick=lambda _: kill_link(cluster))
    assert state.status == "lost"
    cluster.start_link()
    assert {node.name for node in nodes_of(cluster)} == before


def test_without_the_process_that_runs_the_apps_a_run_is_an_error(cluster):
    cluster.processes.end("executor", patience=0.0)
    with pytest.raises(OperationError, match=r"(?s)runs the apps to be there.*executor\.log"):
        cluster.run_app(APP, FOR_EVER)


@pytest.mark.long
def test_flower_may_start_the_apps_itself_and_trust_everybody(tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    with Cluster(tmp_path / "cluster", ONE_SITE, apps="spawn") as cluster:
        cluster.start()
        state, told = run(cluster, tmp_path / "out.json", nodes=1)
        assert state.status == "completed"
        assert told["answers"] == [SITES["A"]]
        assert "all nodes answered\n" in cluster.log("server-app").read_text()
        before = {node.node_id for node in nodes_of(cluster)}
        kill_node(cluster, "A")
        cluster.start_nodes("A")
        assert len({node.node_id for node in nodes_of(cluster)} - before) == 1
        pids = [pid_of(cluster.processes), *pids_of(cluster.processes)]
    assert len(pids) >= 5  # supervisor, link, node, and what those two start
    assert living(pids) == []
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.long
def test_a_port_that_is_taken_is_an_error_with_the_logs_last_words(tmp_path):
    with Cluster(tmp_path, {}, apps="spawn") as cluster, socket.socket() as taken:
        taken.bind(("127.0.0.1", cluster.port))
        taken.listen()
        with pytest.raises(OperationError, match=r"(?s)exit code .*link\.log.*address already in"):
            cluster.start_link()


def test_nothing_is_left_after_ctrl_c_in_mid_round(tmp_path):
    def operate() -> None:
        with Cluster(tmp_path / "cluster", ONE_SITE) as cluster:
            cluster.start()
            cluster.run_app(APP, {"nodes": 1, "client-seconds": 1000.0})

    with forked(operate) as owner:
        # supervisor, executor, link, node, ServerApp and ClientApp
        wait_until(lambda: len(family(owner)) == 6, patience=120)
        started = family(owner)
        os.kill(owner, signal.SIGINT)
        assert exit_code(owner) == 130
        assert living(started) == []


def test_nothing_is_left_after_termination_in_mid_start(tmp_path):
    def operate() -> None:
        with Cluster(tmp_path / "cluster", ONE_SITE) as cluster:
            cluster.start()

    with forked(operate) as owner:
        wait_until(lambda: len(family(owner)) == 4)
        started = family(owner)
        os.kill(owner, signal.SIGTERM)
        assert exit_code(owner) == 128 + signal.SIGTERM
        assert living(started) == []
