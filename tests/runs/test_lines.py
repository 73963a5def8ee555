"""Lines of the history of very many sources are short and readable, and lose nothing on the way."""

import base64
import json
import zlib

import pytest
from small import blobs, same_numbers

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.lines import GROUPED, NAMED, packed, rounded, unpacked

QUICK = {"model": "linear", "batch_size": 8, "workers": 1}
MANY = GROUPED + 20


def line(count):
    values = [None if k % 7 == 3 else 1 / (k + 3) for k in range(count)]
    return {"round": 2, "beta": values, "d2": [-1e-9 * k for k in range(count)], "cosine": None}


def names(count):
    return [f"site {k}" for k in range(count)]


def test_few_sources_are_written_as_they_are():
    own = line(GROUPED)
    assert rounded(own) == packed(own, names(GROUPED)) == unpacked(own) == own


def test_many_sources_are_named_by_weight_and_come_back_in_six_digits():
    own = rounded(line(MANY))
    same_numbers(own, line(MANY))
    written = json.loads(json.dumps(packed(own, names(MANY))))
    assert list(written["beta"]["top"]) == [f"site {k}" for k in range(12) if k % 7 != 3]
    assert list(written["d2"]["top"]) == list(written["beta"]["top"])
    there = [value for value in own["beta"] if value is not None]
    assert written["beta"]["others"]["count"] == len(there) - NAMED
    assert written["beta"]["others"]["most"] == there[NAMED]
    assert written["beta"]["others"]["least"] == there[-1]
    assert unpacked(written) == own
    assert packed(unpacked(written), names(MANY)) == written


def test_who_is_not_known_by_name_is_numbered_and_what_is_not_finite_is_nothing():
    own = {"beta": [float("nan"), *[0.5] * MANY]}
    written = packed(own, ())
    assert next(iter(written["beta"]["top"])) == "1"
    assert unpacked(written)["beta"] == [None, *[0.5] * MANY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of many sources, of which most take part."""
    out = tmp_path_factory.mktemp("many") / "run"
    task = blobs(sources=MANY, rows=6)
    return out, fb.run(task, "fedda-auto", 3, out=out, participation=0.9, **QUICK)


def test_a_run_is_read_from_its_folder_as_it_was(folder):
    out, result = folder
    written = [json.loads(text) for text in (out / "history.jsonl").read_text().splitlines()]
    assert set(written[0]["beta"]) == {"top", "others", "packed"}
    assert RunFolder(out).history() == result.history
    assert fb.load_run(out).history["beta"].tolist() == [ln["beta"] for ln in result.history]
    packed_text = base64.b64decode(written[-1]["d2"]["packed"])
    assert json.loads(zlib.decompress(packed_text)) == result.history[-1]["d2"]


def test_it_goes_on_to_the_same_history(folder, tmp_path):
    _, result = folder
    task, options = blobs(sources=MANY, rows=6), {**QUICK, "participation": 0.9}
    fb.run(task, "fedda-auto", 1, out=tmp_path / "run", **options)
    more = fb.run(task, "fedda-auto", 3, out=tmp_path / "run", resume=True, **options)

    def kept(lines):
        return [{k: v for k, v in ln.items() if not k.startswith("seconds")} for ln in lines]

    assert kept(more.history) == kept(result.history)


def test_tables_of_the_report_have_every_source(folder, capsys, tmp_path):
    out, result = folder
    assert main(["report", str(out), "--tables", str(tmp_path)]) == 0
    (rounds,) = tmp_path.rglob("*rounds*.csv")
    head, *rows = rounds.read_text().splitlines()
    assert sum(column.startswith("weight of") for column in head.split(",")) == MANY
    assert len(rows) == len(result.history)
    assert main(["watch", str(out), "--once"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "spoilt",
    [
        {},
        {"packed": 3},
        {"packed": "no base 64!"},
        {"packed": base64.b64encode(b"no zlib").decode()},
        {"packed": base64.b64encode(zlib.compress(b"[1, 2")[:-4]).decode()},
        {"packed": base64.b64encode(zlib.compress(b"[1, 2")).decode()},
        {"packed": base64.b64encode(zlib.compress(b'["a"]')).decode()},
        {"packed": base64.b64encode(zlib.compress(b"[" * 10**5)).decode()},
        {"packed": base64.b64encode(zlib.compress(b"[" + b"0," * 2**26)).decode()},
    ],
)
def test_a_list_that_is_none_is_an_error_that_names_the_line(tmp_path, spoilt):
    (tmp_path / "history.jsonl").write_text(json.dumps({"round": 1, "beta": spoilt}) + "\n")
    with pytest.raises(RunFolderError, match=r"history\.jsonl.*restore the file"):
        RunFolder(tmp_path).history()
