"""``fedbridge data``: what it lists, fetches and checks, and its exit status."""

import hashlib
import json
from dataclasses import replace

import pytest
from serving import serving

from fedbridge.cli.main import main
from fedbridge.data.store.catalogue import CATALOGUE, Content, Download, Files

TEXT = b"1,2,3\n"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def server(monkeypatch):
    """Heart, made small and near."""
    with serving() as running:
        address = running.put("heart.data", TEXT)
        layout = Files((Content("heart.data", hashlib.sha256(TEXT).hexdigest(), len(TEXT)),))
        route = (Download("heart.data", (address,), len(TEXT)),)
        heart = replace(CATALOGUE["heart"], layout=layout, routes=(route,))
        monkeypatch.setitem(CATALOGUE, "heart", heart)
        yield running


def shown(capsys, *words, status=0):
    assert main(["data", *words]) == status
    return capsys.readouterr()


def answer(capsys, *words, status=0):
    out = shown(capsys, *words, "--json", status=status).out
    assert out.count("\n") == 1
    return json.loads(out)


class TestList:
    def test_every_data_set_with_what_one_needs_to_know(self, capsys, root):
        (root / "PACS").mkdir(parents=True)
        text = shown(capsys, "list").out
        for name in CATALOGUE:
            assert name in text
        for word in ("cleveland, hungarian", "CC BY 4.0", "4 sites", "10.24432/C52P4X", "built in"):
            assert word in text
        assert str(root) in text

    def test_json_has_everything(self, capsys, root):
        (root / "PACS").mkdir(parents=True)
        told = answer(capsys, "list")
        assert told["folder"] == str(root)
        assert list(told["data_sets"]) == list(CATALOGUE)
        pacs, heart, digits = (told["data_sets"][name] for name in ("pacs", "heart", "digits"))
        assert (pacs["on_disk"], pacs["folder"]) == (True, str(root / "PACS"))
        assert pacs["layout"]["domains"][0] == {"name": "art_painting", "images": 2048, "also": []}
        assert (heart["on_disk"], heart["folder"]) == (False, None)
        assert heart["tasks"] == ["heart"]
        assert heart["routes"][0][0]["addresses"][0].startswith("https://archive.ics.uci.edu/")
        assert (digits["on_disk"], digits["download_size"]) == (True, 0)


class TestFetch:
    def test_it_fetches_and_says_where_to(self, capsys, server, root):
        told = shown(capsys, "fetch", "heart")
        assert told.out == f"heart: fetched into {root / 'heart'}\n"
        assert told.err == ""
        assert (root / "heart/heart.data").read_bytes() == TEXT

    def test_a_second_time_it_leaves_it_alone(self, capsys, server, root):
        shown(capsys, "fetch", "heart")
        told = shown(capsys, "fetch", "heart").out
        assert told == f"heart: already there and correct, left alone: {root / 'heart'}\n"
        assert len(server.asked["heart.data"]) == 1
        shown(capsys, "fetch", "heart", "--force")
        assert len(server.asked["heart.data"]) == 2

    def test_into_another_folder(self, capsys, server, tmp_path):
        told = answer(capsys, "fetch", "heart", "--dir", str(tmp_path / "x"))
        (heart,) = told["data_sets"]
        assert heart["folder"] == str(tmp_path / "x/heart")
        assert (heart["ok"], heart["already_there"]) == (True, False)
        assert answer(capsys, "check", "heart", "--dir", str(tmp_path / "x"))["ok"]

    def test_one_that_fails_does_not_stop_the_others(self, capsys, server, monkeypatch, root):
        route = (Download("a.zip", (server.address("nowhere"),), 10),)
        monkeypatch.setitem(CATALOGUE, "pacs", replace(CATALOGUE["pacs"], routes=(route,)))
        told = shown(capsys, "fetch", "pacs", "heart", status=1)
        assert told.out == f"heart: fetched into {root / 'heart'}\n"
        assert told.err.startswith("fedbridge: error: Could not fetch 'pacs'. Tried:\n")
        assert "it answered 404" in told.err
        assert "fedbridge data check pacs" in told.err
        told = answer(capsys, "fetch", "pacs", "heart", status=1)
        assert not told["ok"]
        assert list(told["failed"]) == ["pacs"]

    def test_what_is_built_in(self, capsys):
        assert shown(capsys, "fetch", "rbf").out == "rbf: built in, nothing to fetch\n"


class TestCheck:
    def test_fine(self, capsys, server, root):
        shown(capsys, "fetch", "heart")
        assert shown(capsys, "check", "heart").out == f"heart: as published, {root / 'heart'}\n"

    def test_wrong(self, capsys, server, root):
        shown(capsys, "fetch", "heart")
        (root / "heart/heart.data").write_bytes(b"1,2")
        assert shown(capsys, "check", "heart", status=1).out == (
            "heart: not as published\n  heart.data: expected 6 bytes of content, but found 3\n"
        )
        told = answer(capsys, "check", "heart", status=1)
        assert not told["ok"]
        assert told["data_sets"][0]["problems"] == [
            {
                "where": "heart.data",
                "expected": "6 bytes of content",
                "found": "3",
                "minor": False,
            }
        ]

    def test_not_there(self, capsys, root):
        said = shown(capsys, "check", "heart", status=1).out
        assert f"{root / 'heart'}: expected a folder" in said
        assert "fedbridge data fetch heart" in said

    def test_all_are_those_on_disk(self, capsys, server, root):
        assert shown(capsys, "check", "all", status=1).out == f"no data set is in {str(root)!r}\n"
        shown(capsys, "fetch", "heart")
        told = answer(capsys, "check", "all")
        assert [report["name"] for report in told["data_sets"]] == ["heart"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND"),
        (["lst"], "invalid choice: 'lst'"),
        (["fetch"], "NAME"),
        (["fetch", "hart"], "Did you mean 'heart'"),
        (["check", "heart", "fashion_mnist"], "Did you mean 'fashion-mnist'"),
        (["check", "heart", "--force"], "--force"),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(capsys, words, message):
    told = shown(capsys, *words, status=2)
    assert told.out == ""
    assert message in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("command", ["list", "fetch", "check"])
def test_every_command_shows_examples(capsys, command):
    with pytest.raises(SystemExit) as done:
        main(["data", command, "--help"])
    assert done.value.code == 0
    assert f"  fedbridge data {command}" in capsys.readouterr().out


def test_ctrl_c_says_how_to_go_on(capsys, server, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbridge.data.store.download.download", interrupted)
    assert main(["data", "fetch", "heart"]) == 130
    assert "to go on: fedbridge data fetch heart" in capsys.readouterr().err
