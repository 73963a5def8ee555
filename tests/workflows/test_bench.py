"""Ratios: every part is measured, told and written where a document wants it."""

import json
from pathlib import Path

import pytest
from helpers import RULES

from fedbridge.base.errors import OptionError
from fedbridge.cli import shared
from fedbridge.cli.main import main
from fedbridge.report.benchmarks import IMAGE, MARK, PARTS, Benchmarks, write
from fedbridge.report.tables import to_markdown, to_terminal
from fedbridge.workflows import bench as module
from fedbridge.workflows.bench import COUNTS, GROWING, Size, bench

TINY = Size(
    entries=20_000,
    length=2000,
    tries=1,
    images=64,
    rounds=1,
    lengths=(500, 900),
    methods=("fedavg",),
    sources=20,
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


def test_a_round_is_measured_beside_flowers_own_simulation_in_turn():
    """Ray and Flower start in a process of their own, as they do in earnest."""
    pytest.importorskip("ray")
    (row,) = bench(["flower"], quick=True).flower
    assert row["method"] == "fedavg"
    assert row["ratio"] == pytest.approx(row["flower"] / row["seconds"])
    table = to_markdown(Benchmarks(flower=[row]).tables()[0])
    assert "| `fedavg` |" in table


def test_rounds_of_very_many_sources_are_measured_with_their_memory():
    found = bench(["many"], quick=True).many
    assert [(row["method"], row["participation"]) for row in found] == [
        (name, share) for name in ("fedavg", "fedgp-auto", "fedda-joint") for share in (0.1, 1)
    ]
    assert all(row["seconds"] > 0 and row["memory"] >= 0 for row in found)
    assert found[1]["updates"] == 4 * 44_426 * 21


def test_what_cannot_be_measured_says_so():
    with pytest.raises(OptionError, match=r"'many nonsense 1 5' to be measured.*nonsense"):
        module._apart("many", "nonsense", "1", "5")


def test_names_are_set_as_code_in_documents_and_plainly_in_the_terminal(capsys):
    (table,) = Benchmarks(methods=[{"method": "auto", "needs": "", "seconds": 1.0}]).tables()
    assert "| `auto` | 1000 |" in to_markdown(table)
    shared.results().print(to_terminal(table))
    assert "`" not in capsys.readouterr().out


def test_what_a_document_marks_is_filled_in_and_nothing_else(tmp_path: Path):
    document = tmp_path / "numbers.md"
    text = "Before\n<!-- bench: {} -->\nold\n<!-- end -->\nafter images/growth.svg\n"
    document.write_text("".join(text.format(name) for name in ("rules", "round", "machine")))
    written = write(Benchmarks(**MADE_UP), document)
    now = document.read_text()
    assert "| `fedda` | 1.25 | – |" in now
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
    marked = MARK.findall((docs / "benchmarks.md").read_text())
    assert {name for _, name, _ in marked} >= {
        "machine",
        "rules",
        "growth",
        "round",
        "flower",
        "many",
    }
    assert (docs / IMAGE).exists()
