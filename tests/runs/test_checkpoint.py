"""Checkpoints are whole or not there, and a damaged one gives way to the one before."""

import json

import pytest
import torch

from fedbridge.runs.checkpoint import Checkpoint, CheckpointError, CheckpointStore


def checkpoint(number):
    return Checkpoint(number, {"x": torch.full((3,), float(number))}, {"note": number})


@pytest.fixture
def folder(tmp_path):
    for number in (-1, 0, 1, 2):
        CheckpointStore(tmp_path).save(checkpoint(number))
    return tmp_path


def test_the_newest_is_loaded_and_two_are_kept(folder):
    loaded = CheckpointStore(folder).load()
    assert (loaded.round, loaded.facts) == (2, {"note": 2})
    assert torch.equal(loaded.tensors["x"], torch.full((3,), 2.0))
    assert len(list(folder.iterdir())) == 4


def test_an_empty_folder_has_none(tmp_path):
    assert CheckpointStore(tmp_path).load() is None
    assert CheckpointStore(tmp_path / "missing").load() is None


def damaged(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "a flipped bit in the tensors": lambda f: damaged(newest(f, "safetensors")),
    "half of the tensors": lambda f: newest(f, "safetensors").write_bytes(b"1234"),
    "no tensors": lambda f: newest(f, "safetensors").unlink(),
    "half of the JSON": lambda f: newest(f, "json").write_text('{"format": 1, "rou'),
    "a changed value": lambda f: rewrite(newest(f, "json"), facts={"note": 99}),
    "a changed round": lambda f: rewrite(newest(f, "json"), round=7),
    "JSON of another kind": lambda f: newest(f, "json").write_text("[]"),
}


def newest(folder, ending):
    return max(folder.glob(f"round-*.{ending}"))


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_warns_and_the_previous_one_serves(folder, damage):
    damage(folder)
    with pytest.warns(UserWarning, match="damaged"):
        loaded = CheckpointStore(folder).load()
    assert loaded.round == 1


def test_another_format_is_an_error_that_says_so(folder):
    rewrite(newest(folder, "json"), format=2)
    with pytest.raises(CheckpointError, match="format 2"):
        CheckpointStore(folder).load()


def test_one_that_was_never_finished_is_none(folder):
    newest(folder, "json").unlink()
    assert CheckpointStore(folder).load().round == 1


def test_a_round_that_is_played_again_leaves_later_ones_behind(folder):
    CheckpointStore(folder).save(checkpoint(0))
    assert CheckpointStore(folder).load().round == 0
    assert len(list(folder.iterdir())) == 2


def test_kinds_are_apart_and_an_earlier_round_can_be_asked_for(folder):
    other = CheckpointStore(folder, "other", mode=0o600)
    for number in (1, 2, 3):
        other.save(checkpoint(number))
    assert other.load().round == 3
    assert other.load(before=3).round == 2
    assert other.load(before=2) is None
    assert CheckpointStore(folder).load().round == 2
    assert {path.stat().st_mode & 0o777 for path in folder.glob("other-*")} == {0o600}
