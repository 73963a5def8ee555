"""The command line: what it shows, what it writes, and how it says no."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest

import fedbridge as fb
from fedbridge.base.files import file_name
from fedbridge.base.values import literal
from fedbridge.cli.main import build_parser, main
from fedbridge.cli.shared import Parser
from fedbridge.methods import alone
from fedbridge.workflows.compare import ALONE

QUICK = ["--rounds", "1", "--steps", "2", "--workers", "1"]
FEW = [*QUICK, "--no-alone"]
RUN = ["run", "digits-noise", "--method", "fedda", *QUICK]


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(capsys, *words):
    """The one line that a wrong command line gets."""
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("fedbridge: error: ")
    assert shown.err.count("\n") == 1
    return shown.err


def answer(capsys, *words):
    """The JSON object that a command prints, and nothing else."""
    assert main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count("\n") == 1
    return json.loads(shown.out)


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("3", 3),
            ("-1.5", -1.5),
            ("1e-3", 0.001),
            ("true", True),
            ("False", False),
            ("none", None),
            ("0.1,0.2", [0.1, 0.2]),
            ("[1, 2]", [1, 2]),
            ('"3"', "3"),
            ("[oops", "[oops"),
            ("age,sex", "age,sex"),
            ("balanced", "balanced"),
            ("", ""),
        ],
    )
    def test_a_value_is_what_one_means(self, text, value):
        assert literal(text) == value
        assert type(literal(text)) is type(value)

    def parse(self, *words):
        parser = Parser(open_options=True)
        parser.add_argument("task")
        parser.add_argument("--out")
        parser.add_argument("--set", action="append")
        return parser.parse_args(words)

    def test_any_option_is_taken_wherever_it_stands(self):
        args = self.parse("--lr", "0.1", "TASK", "--n-target=5", "--out", "o", "--beta", "-1")
        assert (args.task, args.out) == ("TASK", "o")
        assert args.options == {"lr": 0.1, "n_target": 5, "beta": -1}

    def test_dashes_and_underscores_are_the_same(self):
        assert self.parse("T", "--label_column", "y").options == {"label_column": "y"}
        assert self.parse("T", "--label-column", "y").options == {"label_column": "y"}

    def test_an_option_without_a_value_is_true(self):
        assert self.parse("T", "--grayscale", "--align").options == {
            "grayscale": True,
            "align": True,
        }

    def test_set_does_the_same(self):
        args = self.parse("T", "--set", "lr=0.1", "--set", "site-column=3")
        assert args.options == {"lr": 0.1, "site_column": "3"}

    def test_names_of_columns_stay_text(self):
        assert self.parse("T", "--label-column", "7").options == {"label_column": "7"}


class TestRun:
    def test_it_shows_the_result_and_where_it_is(self, capsys, tmp_path):
        assert main(RUN) == 0
        shown = capsys.readouterr().out
        assert "accuracy" in shown
        assert "95% interval" in shown
        assert "runs/digits-noise-target-fedda-0" in shown
        assert (tmp_path / "runs/digits-noise-target-fedda-0/summary.json").exists()

    def test_json_is_the_summary_and_the_folder(self, capsys, tmp_path):
        told = answer(capsys, *RUN, "--out", "here")
        assert told.pop("out") == "here"
        assert told == json.loads((tmp_path / "here/summary.json").read_text())
        assert {"task", "target", "method", "seed", "rounds", "accuracy"} <= set(told)

    def test_options_reach_task_run_and_method(self, capsys, tmp_path):
        told = answer(
            capsys, *RUN, "--out", "o", "--n-target", "14", "--lr=0.2", "--set", "beta=0.1,0,0,1"
        )
        assert told["n_target"] == 14
        config = (tmp_path / "o/config.toml").read_text()
        assert "lr = 0.2" in config
        assert "beta = [\n    0.1," in config

    def test_it_is_the_run_of_the_library(self, capsys):
        told = answer(capsys, *RUN, "--seed", "3", "--noise", "0.2", "--out", "o")
        task = fb.load_task("digits-noise", seed=3, noise=0.2)
        result = fb.run(task, "fedda", rounds=1, seed=3, steps=2, workers=1)
        assert told["loss"] == result.summary["loss"]

    def test_a_finished_run_is_refused_or_resumed(self, capsys):
        first = answer(capsys, *RUN)
        assert "already holds this run: add --resume" in refused(capsys, *RUN)
        assert answer(capsys, *RUN, "--resume")["accuracy"] == first["accuracy"]

    def test_quiet_shows_only_the_result(self, capsys, table):
        words = [*RUN[2:], "--target", "a", "--out"]
        main(["run", str(table), *words, "loud", "--verbose"])
        assert "standardised" in capsys.readouterr().out
        main(["run", str(table), *words, "quiet", "--quiet"])
        shown = capsys.readouterr()
        assert "standardised" not in shown.out
        assert shown.err == ""

    def test_what_a_model_prints_stays_out_of_the_json(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        (tmp_path / "chatty.py").write_text(
            "from torch import nn\n"
            "def build(task):\n"
            "    print('hello')\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        )
        assert main([*RUN, "--model", "chatty:build", "--json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["task"] == "digits-noise"
        assert "hello" in shown.err

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("learning_rate = 1", "'learning_rate'. Did you mean 'lr'?"),
            ("rounds = 1", "--rounds"),
            ('lr = "high"', "'high'"),
            ("lr = [1]", "[1]"),
            ("workers = 1.5", "1.5"),
        ],
    )
    def test_a_task_file_that_means_nothing_is_refused(self, capsys, tmp_path, line, said):
        (tmp_path / "t.toml").write_text(f'[task]\nname = "digits-noise"\n[run]\n{line}\n')
        assert said in refused(capsys, "run", "t.toml")
        assert said in refused(capsys, "compare", "t.toml", "--methods", "fedda", "--seeds", "1")

    def test_a_hostile_site_name_stays_in_the_folder(self, capsys, tmp_path):
        text = (tmp_path / "t.csv").write_text
        rows = [f"{site},{k % 7},{k % 2}" for site in ("../../x", "b") for k in range(40)]
        text("\n".join(["site,x,label", *rows]))
        told = answer(capsys, "run", "t.csv", "--target", "../../x", *RUN[2:])
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["runs"]
        assert told["out"].startswith("runs/t-..-..-x-fedda-0-")

    def test_a_site_may_begin_with_a_dash(self, capsys, tmp_path):
        rows = [f"{site},{k % 7},{k % 2}" for site in ("-90%", "+90%") for k in range(40)]
        (tmp_path / "t.csv").write_text("\n".join(["site,x,label", *rows]))
        assert answer(capsys, "run", "t.csv", "--target", "-90%", *RUN[2:])["target"] == "-90%"
        assert "one argument" in refused(capsys, "run", "t.csv", "--target", "--json")


@pytest.fixture
def table(tmp_path):
    rows = [f"{site},{k % 7},{'yes' if k % 7 > 3 else 'no'}" for site in "abc" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,label", *rows]))
    return tmp_path / "t.csv"


class TestCompare:
    def test_it_shows_a_table_and_writes_a_report(self, capsys, tmp_path):
        words = ["compare", "digits-noise", "--methods", "fedda", "--seeds", "2", *QUICK]
        assert main(words) == 0
        shown = capsys.readouterr().out
        for name in ("source-only", "target-only", "target-only-matched", "fedda", *ALONE):
            assert name in shown
        assert "**" in shown
        assert (tmp_path / "runs/compare-digits-noise/report.html").exists()
        assert main(words) == 0
        assert "12 of 12 runs were finished before" in capsys.readouterr().out

    def test_without_the_stand_alone_baselines(self, capsys):
        words = ["compare", "digits-noise", "--methods", "fedda", "--seeds", "1", "--no-alone"]
        assert main([*words, *QUICK]) == 0
        shown = capsys.readouterr().out
        assert "fedda" in shown
        assert not any(name in shown for name in ALONE)

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--targets", "all"], ["a", "b", "c"]),
            (["--targets", "a, c"], ["a", "c"]),
            (["--targets", "C,c"], ["c"]),
            (["--target", "b", "--target", "a"], ["b", "a"]),
        ],
    )
    def test_targets(self, capsys, table, words, expected):
        told = answer(capsys, "compare", str(table), *words, "--seeds", "4,", *FEW)
        assert told["settings"] == expected
        assert told["seeds"] == [4]

    def test_every_combination_of_varied_options_is_a_setting(self, capsys, tmp_path):
        words = ["--vary", "n-target=12,14", "--vary", "beta=0.25,0.5", "--methods", "fedda"]
        told = answer(capsys, "compare", "digits-noise", *words, "--seeds", "1", *FEW)
        assert told["settings"] == [
            f"digits-noise, n_target {rows}, beta {beta}"
            for rows in (12, 14)
            for beta in (0.25, 0.5)
        ]
        plan = json.loads((tmp_path / told["out"] / "comparison.json").read_text())
        assert plan["tasks"][1]["options"] == {"n_target": 12}
        assert plan["tasks"][1]["run"] == {"beta": 0.5}

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--vary", "noise"], "option=a,b,..."),
            (["--vary", "noise=,"], "option=a,b,..."),
            (["--vary", "noise=0,1", "--noise", "0"], "'noise'"),
            (["--vary", "noise=0,1", "--vary", "noise=2"], "'noise'"),
        ],
    )
    def test_what_cannot_be_varied_is_refused(self, capsys, words, said):
        assert said in refused(capsys, "compare", "digits-noise", *words, *QUICK)

    def test_variants_are_rows_with_names_and_folders_of_their_own(self, capsys, tmp_path):
        words = ["--methods", "fedgp[beta=.50],fedgp[filter=false],fedavg[rounds=2]", "--no-alone"]
        told = answer(capsys, "compare", "digits-noise", *words, "--seeds", "1", *QUICK)
        assert told["methods"][3:] == ["fedgp[beta=0.5]", "fedgp[filter=false]", "fedavg[rounds=2]"]
        folders = [tmp_path / told["out"] / cell["folder"] for cell in told["cells"]]
        assert len({folder.name for folder in folders}) == 6
        assert all((folder / "summary.json").exists() for folder in folders)
        assert main(["compare", "digits-noise", *words, "--seeds", "1", *QUICK]) == 0
        shown = capsys.readouterr().out
        assert "fedgp[filter=false]" in shown
        assert "6 of 6 runs were finished before" in shown

    @pytest.mark.parametrize(
        ("methods", "said"),
        [
            ("fedgp[bta=1]", "method 'fedgp', but there is no option 'bta'. Did you mean 'beta'?"),
            ("fedgp[beta=1", "a missing ]"),
            ("fedgp[beta=1.5]", "fedgp[beta=1.5]: Expected `beta` in [0, 1]"),
        ],
    )
    def test_a_bad_variant_is_refused(self, capsys, methods, said):
        assert said in refused(capsys, "compare", "digits-noise", "--methods", methods, *QUICK)

    def test_a_comparison_file_says_it_all_and_the_command_line_goes_before_it(
        self, capsys, table, tmp_path
    ):
        (tmp_path / "mine.toml").write_text(
            'seeds = 2\nrounds = 1\nmethods = ["fedgp[beta=1]"]\n[options]\nsteps = 2\n'
            '[[tasks]]\ntask = "t.csv"\ntargets = ["c", "a"]\n'
        )
        words = ["compare", "mine.toml", "--workers", "1", "--no-alone"]
        told = answer(capsys, *words, "--seeds", "1")
        assert (told["settings"], told["seeds"]) == (["c", "a"], [0])
        assert told["methods"][3:] == ["fedgp[beta=1]"]
        assert (told["rounds"], told["out"]) == (1, "runs/compare-mine")
        assert main([*words, "--seeds", "1"]) == 0
        assert "8 of 8 runs were finished before" in capsys.readouterr().out
        for flag in ("--target", "--targets", "--vary"):
            assert f"no {flag}" in refused(capsys, *words, flag, "a")

    def test_a_task_without_a_target_asks_for_one(self, capsys, table):
        assert "one of 'a', 'b', 'c'" in refused(capsys, "compare", str(table), *QUICK)

    def test_a_built_in_task_has_one_target(self, capsys):
        told = answer(capsys, "compare", "digits-noise", "--targets", "all", "--seeds", "1", *QUICK)
        assert told["settings"] == ["target"]

    def test_failed_runs_are_named_and_change_the_exit_status(self, capsys, table):
        text = table.read_text().replace("c,1,no", "c,1,no\nd,1,no\nd,2,no\nd,3,no\nd,1,no")
        table.write_text(text)
        words = ["--targets", "a,d", "--seeds", "1", "--methods", "fedda"]
        assert main(["compare", str(table), *words, *QUICK]) == 1
        shown = capsys.readouterr()
        assert "source-only" in shown.out
        assert "fedbridge: d, fedda, seed 0 failed: Expected at least two classes" in shown.err

    def test_when_no_run_succeeds_it_is_an_error(self, capsys):
        words = ["compare", "digits-noise", "--seeds", "1", "--model", "nowhere:build", *QUICK]
        assert "no run succeeded" in refused(capsys, *words)


class TestDemo:
    def test_it_ends_with_a_table_words_and_a_report(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(alone, "TREES", 9)
        assert main(["demo", "--rounds", "1", "--seeds", "1"]) == 0
        shown = capsys.readouterr().out
        assert "auto" in shown
        assert "Small shift" in shown
        assert "report: runs/demo/report.html" in shown
        told = answer(capsys, "demo", "--rounds", "1", "--seeds", "1")
        assert told["report"] == "runs/demo/report.html"
        assert "Small shift" in told["summary"]
        assert "other rounds" in refused(capsys, "demo", "--rounds", "2", "--seeds", "1")


class TestPredictAndReport:
    @pytest.fixture
    def run_dir(self, capsys, table):
        return answer(capsys, "run", str(table), "--target", "a", "--out", "r", *RUN[2:])["out"]

    def test_predictions_go_to_stdout_to_a_file_or_to_json(self, capsys, tmp_path, run_dir, table):
        assert main(["predict", run_dir, str(table)]) == 0
        text = capsys.readouterr().out
        assert text.startswith("row,prediction,probability_no,probability_yes\n")
        assert main(["predict", run_dir, str(table), "--out", "p.csv"]) == 0
        assert (tmp_path / "p.csv").read_text() == text
        assert "120 predictions in p.csv" in capsys.readouterr().out
        told = answer(capsys, "predict", run_dir, str(table))
        assert set(told["predictions"][0]) == {"row", "prediction", "probabilities"}

    @pytest.mark.parametrize("given", [["--decimal", ",", "--thousands", " "], None])
    def test_numbers_spelled_otherwise_are_read_by_option_and_so_are_new_ones(
        self, capsys, tmp_path, given
    ):
        rows = [
            f"{s};1 00{k % 7},5;{'yes' if k % 7 > 3 else 'no'}" for s in "abc" for k in range(40)
        ]
        (tmp_path / "t.csv").write_text("\n".join(["site;x;label", *rows]))
        command = ["run", "t.csv", "--target", "a", "--out", "r", *RUN[2:]]
        said = refused(capsys, *command)
        assert "row 2 at site 'a' has '1 000,5'" in said
        assert "`decimal=','` and `thousands=' '`" in said
        given = given or ["--set", "decimal=,", "--set", "thousands= "]
        assert answer(capsys, *command, *given)["out"] == "r"
        told = answer(capsys, "predict", "r", "t.csv")
        assert len({line["probabilities"]["yes"] for line in told["predictions"]}) == 7
        (tmp_path / "new.csv").write_text("x;x\n1;2\n")
        assert "'x' stands there more than once" in refused(capsys, "predict", "r", "new.csv")

    def test_a_report_is_written_anew(self, capsys, tmp_path, run_dir):
        (tmp_path / run_dir / "report.html").unlink(missing_ok=True)
        assert answer(capsys, "report", run_dir) == {"report": f"{run_dir}/report.html"}
        assert main(["report", run_dir]) == 0
        assert (tmp_path / run_dir / "report.html").exists()

    def test_a_report_may_go_elsewhere_with_its_figures(self, capsys, tmp_path, run_dir):
        told = answer(capsys, "report", run_dir, "--out", "p/mine.html", "--figures", "f")
        assert told["report"] == "p/mine.html"
        assert (tmp_path / "p" / "mine.html").exists()
        drawn = {f"f/accuracy-over-rounds.{kind}" for kind in ("svg", "png", "pdf")}
        assert {*drawn, "f/roc-curve.svg"} <= set(told["figures"])
        assert all((tmp_path / file).stat().st_size for file in told["figures"])

    def test_a_folder_without_a_run_is_refused(self, capsys):
        assert "config.toml" in refused(capsys, "predict", ".", "new.csv")
        refused(capsys, "report", ".")


class TestLists:
    def test_all_methods_with_a_line_each(self, capsys):
        told = answer(capsys, "methods")
        assert list(told) == fb.methods.names()
        assert all(told.values())
        assert main(["methods"]) == 0
        assert "fedgp-joint" in capsys.readouterr().out

    def test_all_tasks_with_a_line_each(self, capsys):
        told = answer(capsys, "tasks")
        assert "digits-noise" in told
        assert all(told.values())


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "COMMAND"),
            (["rn"], "invalid choice: 'rn'"),
            (["run"], "TASK"),
            (["run", "digits-nois"], "Did you mean 'digits-noise'"),
            (["run", "nowhere.csv"], "there is none"),
            (["run", "digits-noise", "--method", "fedaa"], "Did you mean 'fedda'"),
            (["run", "digits-noise", "--nois", "1"], "Did you mean 'noise'"),
            (["run", "digits-noise", "--batchsize", "1"], "Options of every run: model, lr"),
            (["run", "digits-noise", "--rounds", "0"], "`rounds`"),
            (["run", "digits-noise", "--rounds", "x"], "invalid int value"),
            (["run", "digits-noise", "--seed", "-1"], "whole number from 0"),
            (["run", "digits-noise", "--lr", "-1"], "learning rate above 0"),
            (["run", "digits-noise", "--lr", "fast"], "`lr` to be a number"),
            (["run", "digits-noise", "--set", "lr"], "`option=value`"),
            (["compare", "digits-noise", "--seeds", "0"], "how many seeds, from 1"),
            (["compare", "digits-noise", "--rounds", "0"], "`rounds`"),
            (["compare", "digits-noise", "--lrr", "1"], "Options of every run"),
            (["compare", "digits-noise", "--target", "a", "--targets", "b"], "either"),
        ],
    )
    def test_a_mistake_gets_one_line_and_status_2(self, capsys, words, message):
        assert message in refused(capsys, *words)

    def test_debug_shows_where_it_came_from(self):
        with pytest.raises(fb.FedbridgeError):
            main(["--debug", "run", "nowhere.csv"])
        with pytest.raises(fb.FedbridgeError):
            main(["run", "nowhere.csv", "--debug"])

    def test_an_error_of_ours_is_told_apart(self, capsys, monkeypatch):
        def broken(*_, **__):
            raise TypeError("oops")

        monkeypatch.setattr(import_module("fedbridge.workflows.run"), "run", broken)
        assert main(RUN) == 1
        assert "internal error: TypeError: oops (--debug shows where)" in capsys.readouterr().err

    @pytest.mark.filterwarnings("default")
    def test_warnings_get_one_line(self, capsys, table):
        table.write_text(table.read_text().replace(",3,", ",three,"))
        words = ["run", str(table), "--target", "a", "--categorical", "x", "--out", "r"]
        told = answer(capsys, *words, *RUN[2:])
        table.write_text("x\nthirteen\n")
        assert main(["predict", told["out"], str(table)]) == 0
        err = capsys.readouterr().err
        assert err.startswith("fedbridge: warning: Column 'x' has categories")
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        ("words", "advice"),
        [
            (RUN, "--resume"),
            ([*RUN, "--resume"], "--resume"),
            (["compare", "digits-noise", *QUICK], "fedbridge compare digits-noise"),
        ],
    )
    def test_ctrl_c_says_how_to_go_on(self, capsys, monkeypatch, words, advice):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(import_module("fedbridge.data.load"), "load_task", interrupted)
        monkeypatch.setattr(import_module("fedbridge.workflows.loaded"), "load_task", interrupted)
        assert main(words) == 130
        told = capsys.readouterr().err
        assert told.startswith("fedbridge: stopped; to go on: fedbridge ")
        assert advice in told
        assert told.count("--resume") <= 1


class TestHelp:
    @pytest.mark.parametrize("command", ["run", "compare", "demo", "predict", "report"])
    def test_every_command_shows_examples(self, capsys, command):
        with pytest.raises(SystemExit) as done:
            main([command, "--help"])
        assert done.value.code == 0
        shown = capsys.readouterr().out
        assert "example" in shown
        assert f"fedbridge {command}" in shown

    def test_the_examples_can_be_parsed(self):
        texts = [parser.description or "" for parser in every_parser(build_parser())]
        lines = [line.strip() for text in texts for line in text.splitlines()]
        examples = [shlex.split(line)[1:] for line in lines if line.startswith("fedbridge ")]
        assert len(examples) > 8
        for words in examples:
            build_parser().parse_args(words)


def every_parser(parser):
    """A parser, and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from every_parser(command)


class TestNames:
    @pytest.mark.parametrize("name", ["digits-noise-target-auto-0", "Zürich", "+90", "a_b.c"])
    def test_harmless_names_stay(self, name):
        assert file_name(name) == name

    @pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "a\\b", "a\0b", "~", "x" * 999])
    def test_others_become_safe(self, name):
        safe = file_name(name)
        assert safe
        assert not set(safe) & set("/\\\0~")
        assert not safe.startswith(".")
        assert len(safe.encode()) < 200
        assert safe != file_name(name + "!")


def start(*words, **options):
    command = [sys.executable, "-m", "fedbridge", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes | options)


HELPS = """
import argparse, contextlib, io, sys
from fedbridge.cli.main import build_parser, main

def commands(parser, words=()):
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, own in action.choices.items():
                yield from commands(own, (*words, name))

for words in commands(build_parser()):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert shown.getvalue().startswith("usage: fedbridge")
    print(*words, ":", *sorted({"torch", "numpy", "pandas", "rich", "flwr"} & {*sys.modules}))
"""


class TestProcess:
    def test_help_waits_for_no_library(self):
        helped = subprocess.run([sys.executable, "-c", HELPS], capture_output=True, text=True)
        assert helped.returncode == 0, helped.stderr
        lines = [line.split(":") for line in helped.stdout.splitlines()]
        assert {"", "run", "compare", "deploy init", "data fetch"} <= {w.strip() for w, _ in lines}
        assert [found for _, found in lines if found.strip()] == []

    def test_the_module_is_the_command(self):
        out, err = start("--version").communicate(timeout=60)
        assert (out, err) == (f"fedbridge {fb.__version__}\n", "")

    def test_a_reader_that_leaves_is_no_error(self):
        reading, writing = os.pipe()
        os.close(reading)
        process = start("tasks", stdout=writing)
        os.close(writing)
        assert process.communicate(timeout=60)[1] == ""

    def test_ctrl_c_and_resume_give_the_same_result(self, capsys, tmp_path):
        words = ["run", "digits-noise", "--method", "target-only", "--steps", "1", "--workers", "1"]
        process = start(*words, "--rounds", "5000", "--out", "o")
        history = tmp_path / "o/history.jsonl"
        end = time.monotonic() + 60
        while not (history.exists() and history.stat().st_size) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert out == ""
        assert "to go on: fedbridge run digits-noise" in err
        assert "Traceback" not in err
        played = len(history.read_text().splitlines())
        rounds = ["--rounds", str(played + 2)]
        resumed = answer(capsys, *words, *rounds, "--out", "o", "--resume")
        whole = answer(capsys, *words, *rounds, "--out", "whole")
        assert resumed["loss"] == whole["loss"]


def test_an_option_is_called_what_it_was_typed_as(tmp_path, capsys):
    table = tmp_path / "t.csv"
    rows = [f"{site},{k},{k % 2}" for site in "AB" for k in range(20)]
    table.write_text("\n".join(["site,age,label", *rows]))
    words = ["run", str(table), "--target", "A", "--out", str(tmp_path / "run")]
    assert main([*words, "--drop-columns", "agee"]) == 2
    assert "Expected `--drop-columns` to name" in capsys.readouterr().err
    assert main([*words, "--set", "drop_columns=agee"]) == 2
    assert "Expected `drop_columns` to name" in capsys.readouterr().err
