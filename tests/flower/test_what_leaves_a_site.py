"""Nothing but updates and a few scalars leaves a site."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs

import fedbridge as fb
from fedbridge.flower.messages import ALLOWED, ReplyError, check_fields

DOCS = Path(__file__).parents[2] / "docs" / "deploy.md"
QUICK = {"model": "mlp:8", "lr": 0.1, "batch_size": 8}
CANARIES = [-123456.79, 31415.9265, 27182.8184]
WORDS = ["Ada Lovelace", "1815-12-10"]


def sent_by_all(method, tmp_path, task=None, **options):
    task = blobs() if task is None else task
    _, grid = run_over_pretended_flower(task, method, 2, tmp_path, **{**QUICK, **options})
    return grid.sent


@pytest.mark.parametrize(
    "method", ["auto", "fedgp-joint", "fedavg", "finetune-offline", "fedrep", "apfl", "pfedfda"]
)
def test_every_record_is_on_the_list_and_of_its_kind_and_size(method, tmp_path):
    size = 2 * 8 + 8 + 8 * 3 + 3
    for _, _, content in sent_by_all(method, tmp_path, evidence="probe"):
        check_fields(content)
        for name, record in content.items():
            if re.fullmatch(r"update-\d+", name):
                assert record["values"].numpy().shape == (size,)
            elif re.fullmatch(r"noise-\d+", name):
                assert record["noise"].numpy().shape == (4,)
            elif re.fullmatch(r"told-\d+", name):
                assert method == "pfedfda"
                shapes = {field: array.numpy().shape for field, array in record.items()}
                assert shapes == {"means": (3, 8), "covariance": (8, 8)}
            elif isinstance(record, MetricRecord):
                lists = [value for value in record.values() if isinstance(value, list)]
                assert all(len(value) <= 12 for value in lists), "numbers of kinds of candidates"
            else:
                assert isinstance(record, ConfigRecord)
                assert all(len(str(value)) < 300 for value in record.values())


def test_the_list_names_nothing_that_could_hold_rows():
    fields = {field for allowed in ALLOWED.values() for field in allowed}
    assert not {"x", "y", "rows", "labels", "data", "predictions"} & fields


@pytest.mark.parametrize(
    "record",
    [
        ("rows", ArrayRecord({"x": torch.zeros(3)})),
        ("metrics", MetricRecord({"age": 61})),
        ("site", ConfigRecord({"site": "A", "patient": "Ada"})),
        ("update-0", ArrayRecord({"rows": torch.zeros(3)})),
    ],
    ids=lambda record: record[0],
)
def test_other_records_and_fields_are_refused(record, tmp_path):
    name, content = record
    _, _, reply = sent_by_all("fedavg", tmp_path)[-1]
    reply[name] = content
    with pytest.raises(ReplyError):
        check_fields(reply)


def bytes_of(content):
    """Everything in a message as bytes, arrays as their numbers."""
    parts = []
    for record in content.values():
        if isinstance(record, ArrayRecord):
            parts += [array.numpy().tobytes() for array in record.values()]
            parts += [array.data for array in record.values()]
        else:
            parts.append(record.deflate())
    return b"".join(parts)


@pytest.mark.parametrize("method", ["auto", "fedgp-joint", "fedavg"])
@pytest.mark.parametrize("encoding", ["float32", "bfloat16", "int8"])
def test_planted_values_never_appear_in_a_message(method, encoding, tmp_path):
    """Values in the rows, and names of classes, in the bytes of every message of every site."""
    plain = blobs(target_rows=24)

    def planted(site):
        x = site.x.clone()
        x[: len(CANARIES), 0] = torch.tensor(CANARIES)
        return x, site.y

    task = fb.FederatedTask.from_arrays(
        sources={site.name: planted(site) for site in plain.sources},
        target=planted(plain.target),
        test=planted(plain.test),
    )
    sent = sent_by_all(method, tmp_path, task, encoding=encoding, lr=1e-7)
    needles = [struct.pack("<f", value) for value in CANARIES]
    needles += [struct.pack("<d", value) for value in CANARIES]
    needles += [np.float16(value / 1000).tobytes() * 2 for value in CANARIES]
    assert sent
    for _, _, content in sent:
        haystack = bytes_of(content)
        assert not [needle for needle in needles if needle in haystack]


def test_planting_would_be_found():
    content = {"update-0": ArrayRecord({"values": torch.tensor([1.0, CANARIES[0]])})}
    assert struct.pack("<f", CANARIES[0]) in bytes_of(content)


def test_an_error_at_a_site_does_not_carry_its_rows(tmp_path):
    from fedbridge.flower.client import client_app

    def broken(context):
        raise ValueError(f"cannot parse {WORDS[0]}, born {WORDS[1]}")

    task = blobs()
    nodes = nodes_of(task, tmp_path)
    nodes[-1].app = client_app(load=broken)
    grid = PretendGrid(nodes)
    strategy, _ = run_over_pretended_flower(task, "fedavg", 1, tmp_path, grid, **QUICK)
    told = str(strategy.result.history)
    assert not [word for word in WORDS if word in told]


def test_with_differential_privacy_nothing_measured_leaves(tmp_path):
    task = blobs()
    nodes = nodes_of(task, tmp_path, **{"dp-clip": 1.0, "dp-noise": 2.0})
    grid = PretendGrid(nodes)
    strategy, _ = run_over_pretended_flower(task, "auto", 2, tmp_path, grid, **QUICK)
    for _, kind, content in grid.sent:
        if kind == "evaluate":
            assert {*content} == {"site", "metrics"}
            assert {*content["site"]} == {"site", "role"}
            assert {*content["metrics"]} <= {"num-examples"}
    (first, second) = strategy.result.history
    assert first["accuracy"] is None
    assert first["choice"] == "withheld"
    assert set(first["epsilon"]) == {"target", *task.source_names}
    assert second["epsilon"]["target"] > first["epsilon"]["target"] > 0


def test_statistics_of_features_leave_only_a_site_that_has_agreed(tmp_path):
    task, nodes = blobs(), nodes_of(blobs(), tmp_path)
    del nodes[1].config["most-statistics"]
    grid = PretendGrid(nodes)
    strategy, _ = run_over_pretended_flower(task, "pfedfda", 1, tmp_path, grid, **QUICK)
    (line,) = strategy.result.history
    assert [*line["failures"]] == ["site 0"]
    assert "at most 0 messages to tell statistics of features" in line["failures"]["site 0"]
    told = {name for name, _, content in grid.sent if "told-0" in content}
    assert told == {"target", "site 1", "site 2"}


def test_statistics_of_features_never_leave_beside_differential_privacy(tmp_path):
    task, nodes = blobs(), nodes_of(blobs(), tmp_path)
    nodes[1].config |= {"dp-clip": 1.0, "dp-noise": 2.0}
    grid = PretendGrid(nodes)
    strategy, _ = run_over_pretended_flower(task, "pfedfda", 1, tmp_path, grid, **QUICK)
    (line,) = strategy.result.history
    assert "differential privacy" in line["failures"]["site 0"]
    assert not [1 for name, _, content in grid.sent if name == "site 0" and "told-0" in content]


def test_the_documents_have_the_whole_list():
    text = DOCS.read_text(encoding="utf-8").partition("| record | its fields |")[2]
    rows = re.findall(r"^\| `(\S+)` \| (.*) \|$", text.partition("\n\n")[0], flags=re.MULTILINE)
    told = {record.replace("K", r"\d+"): set(re.findall(r"`(\S+)`", row)) for record, row in rows}
    assert told == {record: set(fields) - {"*"} for record, fields in ALLOWED.items()}
