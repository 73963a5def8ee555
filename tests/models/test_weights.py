"""Checkpoint files: checked before they are opened, read once, fitted strictly."""

import os
from pathlib import Path

import pytest
import torch
from checkpoints import save_checkpoint
from safetensors.torch import save_file
from torch import nn

from fedbridge.base.errors import ModelError
from fedbridge.base.files import sha256
from fedbridge.models.weights import fingerprint, kept_copy, load_strictly, read_weights


def tiny() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return tiny().state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_a_pth_is_kept_as_safetensors_for_whoever_names_it(tmp_path, state):
    file = save_checkpoint(state, tmp_path)
    assert same(read_weights(file), state)
    file.unlink()
    assert same(read_weights(kept_copy(file)), state)
    assert [path.name for path in tmp_path.iterdir()] == [f"{file.name}.safetensors"]
    with pytest.raises(ModelError, match="cannot be read"):
        read_weights(file)


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_claims_the_checksum_of_a_pth_is_never_taken_for_it(tmp_path, state, there):
    file = save_checkpoint(state, tmp_path)
    forged = {name: torch.zeros_like(value) for name, value in state.items()}
    claims = {"sha256": sha256(file.read_bytes()), "fingerprint": fingerprint(forged)}
    save_file(forged, kept_copy(file), metadata=claims)
    if there:
        assert same(read_weights(file), state)
        assert same(read_weights(kept_copy(file)), state)
    else:
        file.unlink()
        with pytest.raises(ModelError, match="cannot be read"):
            read_weights(file)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "resnet18-f37072fd.pth")
    with pytest.raises(ModelError, match="no regular file"):
        read_weights(tmp_path / "resnet18-f37072fd.pth")


def damage_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut_in_half(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [damage_last_byte, cut_in_half, empty])
def test_a_damaged_copy_is_made_anew(tmp_path, state, harm):
    file = save_checkpoint(state, tmp_path)
    read_weights(file)
    harm(kept_copy(file))
    assert same(read_weights(file), state)
    assert same(read_weights(kept_copy(file)), state)


def test_a_copy_of_another_file_is_not_used(tmp_path, state):
    other = save_checkpoint({"weight": torch.ones(3)}, tmp_path, "other")
    read_weights(other)
    file = save_checkpoint(state, tmp_path)
    kept_copy(other).rename(kept_copy(file))
    assert same(read_weights(file), state)


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path, state):
    file = save_checkpoint(state, tmp_path)
    kept_copy(file).mkdir()
    assert same(read_weights(file), state)


def test_nothing_is_written_where_nothing_is_to_be_kept(tmp_path, state):
    file = save_checkpoint(state, tmp_path)
    assert same(read_weights(file, keep=False), state)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("harm", [damage_last_byte, cut_in_half, empty])
def test_a_damaged_pth_is_never_opened(tmp_path, state, harm, monkeypatch):
    file = save_checkpoint(state, tmp_path)
    harm(file)
    monkeypatch.setattr(torch, "load", pytest.fail)
    digits = file.stem[-8:]
    found = sha256(file.read_bytes())
    with pytest.raises(ModelError, match=rf"{file.name}.* begins with {digits}, but .* is {found}"):
        read_weights(file)
    assert not kept_copy(file).exists()


def test_a_pth_needs_a_checksum_from_its_name_or_the_user(tmp_path, state):
    file = save_checkpoint(state, tmp_path).rename(tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=r"append '#sha256='"):
        read_weights(file)
    with pytest.raises(ModelError, match="begins with 00000000"):
        read_weights(file, "00000000")
    assert same(read_weights(file, sha256(file.read_bytes()).upper()), state)


@pytest.mark.parametrize("checksum", ["", "abc", "x" * 8, "0" * 65, ".{8}"])
def test_what_is_no_checksum_is_refused(tmp_path, state, checksum):
    with pytest.raises(ModelError, match="8 to 64 hexadecimal digits"):
        read_weights(save_checkpoint(state, tmp_path), checksum)


class Hostile:
    """Runs a command of its own when it is unpickled carelessly."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_code_in_a_pickle_is_not_run_even_with_the_right_checksum(tmp_path):
    trace = tmp_path / "was here"
    file = save_checkpoint({"weight": Hostile(trace)}, tmp_path / "files")
    with pytest.raises(ModelError, match="cannot be read safely"):
        read_weights(file)
    assert not trace.exists()


def test_bytes_that_are_no_checkpoint_are_refused(tmp_path):
    file = tmp_path / "page.pth"
    file.write_bytes(b"<html>not found</html>")
    with pytest.raises(ModelError, match="cannot be read safely"):
        read_weights(file, sha256(file.read_bytes()))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([1, 2], "a list"),
        (torch.ones(2), "a Tensor"),
        ({}, "nothing"),
        ({"state_dict": {"weight": torch.ones(2)}, "epoch": 3}, "epoch, state_dict"),
        ({1: torch.ones(2)}, "a dictionary of 1"),
    ],
)
def test_anything_but_named_tensors_is_refused(tmp_path, content, found):
    with pytest.raises(ModelError, match=f"holds .*{found}.*state_dict"):
        read_weights(save_checkpoint(content, tmp_path))


def test_parameters_and_shared_or_transposed_tensors_are_kept_as_plain_ones(tmp_path):
    shared = torch.rand(2, 3)
    content = {"a": nn.Parameter(shared), "b": shared, "c": shared.T}
    file = save_checkpoint(content, tmp_path)
    read_weights(file)
    assert same(read_weights(file), {"a": shared, "b": shared, "c": shared.T})
    assert not any(value.requires_grad for value in read_weights(file).values())


def test_safetensors_need_no_checksum_but_may_have_one(tmp_path, state):
    file = tmp_path / "weights.safetensors"
    save_file(state, file)
    assert same(read_weights(file), state)
    assert same(read_weights(file, sha256(file.read_bytes())[:10]), state)
    with pytest.raises(ModelError, match="begins with 0123456789"):
        read_weights(file, "0123456789")


def test_a_file_that_cannot_be_read_is_named(tmp_path, state):
    file = tmp_path / "weights.safetensors"
    save_file(state, file)
    cut_in_half(file)
    with pytest.raises(ModelError, match=r"weights\.safetensors.* cannot be read"):
        read_weights(file)
    for missing in ("gone.safetensors", "gone-01234567.pth"):
        with pytest.raises(ModelError, match=rf"{missing}.*No such file"):
            read_weights(tmp_path / missing)
    with pytest.raises(ModelError, match=r"ends in \.safetensors, \.pth, \.pt, .*weights\.bin"):
        read_weights(tmp_path / "weights.bin")


def test_loading_gives_the_model_all_tensors(state):
    model = tiny()
    load_strictly(model, state, "file")
    assert same(model.state_dict(), state)


def test_old_files_without_counters_of_batches_load(state):
    del state["1.num_batches_tracked"]
    model = tiny()
    load_strictly(model, state, "file")
    assert torch.equal(model[0].weight, state["0.weight"])


def test_tensors_that_do_not_fit_are_named_and_nothing_is_loaded(state):
    changed = {**state, "3.weight": torch.rand(5, 4), "extra": torch.rand(1)}
    del changed["0.bias"]
    model = tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        ModelError,
        match=r"'file'.*missing: 0\.bias; unexpected: extra; of another shape: "
        r"3\.weight \(5, 4\) instead of \(2, 4\)",
    ):
        load_strictly(model, changed, "file")
    assert same(model.state_dict(), before)


def test_of_many_wrong_names_a_few_are_shown():
    with pytest.raises(ModelError, match=r"missing: 0\.bias, 0\.weight, 1\.bias and 5 more"):
        load_strictly(tiny(), {}, "file")


def test_a_fingerprint_depends_on_names_shapes_types_and_values_only(state):
    assert fingerprint(state) == fingerprint(dict(reversed(state.items())))
    value = torch.arange(6.0).view(2, 3)
    others = [
        {"b": value},
        {"a": value.view(3, 2)},
        {"a": value.double()},
        {"a": value + 1},
        {"a": value, "b": value},
    ]
    assert len({fingerprint({"a": value}), *map(fingerprint, others)}) == 1 + len(others)
    assert fingerprint({"a": value.T}) == fingerprint({"a": value.T.contiguous()})
