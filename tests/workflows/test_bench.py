"""Ratios: every part is measured, told and written where a document wants it."""

import json
from pathlib import Path

import pytest
from helpers import RULES

from fedbridge.base.errors import OptionError
from fedbridge.cli.main import main
from fedbridge.workflows import bench as module
from fedbridge.workflows.bench import COUNTS, GROWING, PARTS, Benchmarks, Size, bench, write

TINY = Size(
    entries=20_000,
    length=2000,
    tries=1,
    images=64,
    rounds=1,
    lengths=(500, 900),
    methods=("fedavg",),
)
MADE_UP = {
    "machine": {"cores": 2, "processor": "X", "python": "3", "torch": "2", "quick": True},
    "rules": [{"rule": "fedda", "ratio": 1.25, "extra_memory": None}],
    "growth": [
        {"over": over, "sources": n, "length": m, "rule": rule, "ratio": 2.0, "extra_memory": 0.0}
        for over, n, m in (("sources", 10, 5), ("sources", 50, 1), ("length", 10, 9))
        for rule in GROWING
    ],
    "flower": [{"method": "fedavg", "seconds": 1.0, "flower": 3.5, "ratio": 3.5}],
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(module, "QUICK", TINY)


def test_rules_and_growth_are_measured_over_bare_passes():
    told = []
    found = bench(["growth", "rules"], quick=True, tell=lambda *news: told.append(news))
    assert [row["rule"] for row in found.rules] == list(RULES)
    assert all(row["ratio"] > 0 for row in found.rules + found.growth)
    counts = {row["sources"] for row in found.growth if row["over"] == "sources"}
    assert counts == set(COUNTS)
    assert {row["length"] for row in found.growth if row["over"] == "length"} == {500, 900}
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert told[-1] == (1.0, "done")


def test_a_round_is_measured_over_the_bare_loop_and_methods_over_fedavg(monkeypatch):
    monkeypatch.setattr(module, "ROUND_METHODS", ("fedda",))
    found = bench(["round", "methods"], quick=True)
    (row,) = found.round
    assert row["ratio"] == pytest.approx(row["seconds"] / row["bare"])
    (cost,) = found.methods
    assert cost["method"] == "fedavg"
    assert cost["bytes_up"] > 0
    assert cost["ratio"] > 0


def test_what_a_document_marks_is_filled_in_and_nothing_else(tmp_path: Path):
    document = tmp_path / "numbers.md"
    text = "Before\n<!-- bench: {} -->\nold\n<!-- end -->\nafter images/growth.svg\n"
    document.write_text("".join(text.format(name) for name in ("rules", "round", "machine")))
    written = write(Benchmarks(**MADE_UP), document)
    now = document.read_text()
    assert "| fedda | 1.25 | – |" in now
    assert now.count("old") == 1  # nobody measured a round
    assert "2 cores of X" in now
    assert written == [document, tmp_path / "images" / "growth.svg"]
    assert "fedgp-joint" in written[1].read_text()
    write(Benchmarks(**MADE_UP), document)
    assert document.read_text() == now


def test_a_document_without_marks_is_left_alone(tmp_path: Path):
    document = tmp_path / "numbers.md"
    document.write_text("nothing to fill in\n")
    with pytest.raises(OptionError, match="bench: rules"):
        write(Benchmarks(**MADE_UP), document)
    assert document.read_text() == "nothing to fill in\n"


def test_the_command_prints_tables_or_one_object(capsys):
    assert main(["bench", "--quick", "--only", "rules", "--quiet"]) == 0
    assert "time / two passes" in capsys.readouterr().out
    assert main(["bench", "--quick", "--only", "rules", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"machine", *PARTS}
    assert found["machine"]["quick"] is True
    assert main(["bench", "--only", "rule"]) == 2
    assert "rules, growth, round, flower, many, methods" in capsys.readouterr().err


def test_the_documents_of_the_project_have_the_marks():
    docs = Path(__file__).parents[2] / "docs"
    marked = module.MARK.findall((docs / "benchmarks.md").read_text())
    assert {name for _, name, _ in marked} >= {
        "machine",
        "rules",
        "growth",
        "round",
        "flower",
        "many",
    }
    assert (docs / module.IMAGE).exists()
