"""Checkpoint files of pretrained networks: checked, read without running code, fitted strictly.

``.safetensors`` holds nothing but tensors. ``.pth`` is a pickle, so it is opened only after its
checksum was found right, every time anew, and only by PyTorch's reader of plain weights. Its
tensors are kept as ``.safetensors`` beside it for whoever wants to name that file instead; nothing
that lies beside a ``.pth`` is taken for it.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedbridge.base.errors import ModelError
from fedbridge.base.files import StorageError, read_bytes, readable_size, sha256, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SAFE = ".safetensors"
PICKLED = (".pth", ".pt")
SUFFIXES = (SAFE, *PICKLED)
SHORTEST_CHECKSUM = 8
NAMES_SHOWN = 3
BATCH_COUNTER = "num_batches_tracked"


def read_weights(
    path: Path, checksum: str | None = None, *, keep: bool = True
) -> dict[str, Tensor]:
    """The named tensors of a checkpoint file.

    Args:
        path: A ``.safetensors``, ``.pth`` or ``.pt`` file.
        checksum: SHA-256 of the file, or its first digits (at least 8). A ``.pth`` needs one; its
            name may hold it in the usual way, as ``resnet18-f37072fd.pth``.
        keep: Whether the tensors of a ``.pth`` are kept beside it as ``.safetensors``; not in a
            folder that belongs to another program.
    """
    if checksum is not None:
        _check_is_checksum(checksum)
    if path.suffix == SAFE:
        if checksum is not None:
            _check_content(path, _read_bytes(path), checksum)
        try:
            return stored_tensors(path)[0]
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"Expected tensors in {str(path)!r}, but it cannot be read ({error}): get the file "
                f"again."
            ) from error
    if path.suffix in PICKLED:
        content = _read_bytes(path)
        _check_content(path, content, checksum or _checksum_in_name(path))
        tensors = _unpickle(path, content)
        if keep:
            _keep(path, tensors)
        return tensors
    raise ModelError(
        f"Expected weights in a file that ends in {', '.join(SUFFIXES)}, but got {str(path)!r}."
    )


def stored_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a ``.safetensors`` file, and what its header says of them."""
    readable_size(path)
    with safe_open(path, framework="pt") as stored:
        names = stored.keys()
        return {name: stored.get_tensor(name) for name in names}, stored.metadata() or {}


def kept_copy(path: Path) -> Path:
    """Where the tensors of a ``.pth`` are kept for other readers once they were read."""
    return path.with_name(path.name + SAFE)


def load_strictly(model: nn.Module, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Give a model exactly the tensors it has, or say which are missing, too many or misshapen.

    Only BatchNorm's counter of batches may be missing: files from before it was invented lack it,
    and with the usual momentum nothing depends on it.
    """
    own = model.state_dict()
    counters = {name for name in own if name.endswith(BATCH_COUNTER)}
    wrong = {
        "missing": own.keys() - tensors.keys() - counters,
        "unexpected": tensors.keys() - own.keys(),
        "of another shape": {
            f"{name} {tuple(tensors[name].shape)} instead of {tuple(own[name].shape)}"
            for name in own.keys() & tensors.keys()
            if own[name].shape != tensors[name].shape
        },
    }
    if any(wrong.values()):
        found = "; ".join(f"{what}: {_some(names)}" for what, names in wrong.items() if names)
        raise ModelError(
            f"Expected the weights of this very network in {origin!r}, but its tensors do not fit "
            f"({found}): use a checkpoint of the same architecture."
        )
    model.load_state_dict({**own, **tensors})


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of the tensors themselves, the same whatever kind of file they came from."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _keep(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Keep the tensors of a ``.pth`` beside it, unless they are there or nothing can be written."""
    copy, content = kept_copy(path), save(dict(tensors))
    with suppress(OSError, StorageError):
        if not copy.is_file() or copy.read_bytes() != content:
            write_atomically(copy, content)


def _unpickle(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        found = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ModelError(
            f"Expected nothing but tensors in {str(path)!r}, but it cannot be read safely "
            f"({reason[0]}): get the file again, or convert it to {SAFE}."
        ) from error
    entries = found.items() if isinstance(found, dict) else ()
    if not entries or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in entries):
        held = f"a {type(found).__name__}"
        if isinstance(found, dict):
            held = f"a dictionary of {_some(map(str, found))}" if found else "nothing"
        raise ModelError(
            f"Expected named tensors and nothing else in {str(path)!r}, but it holds {held}: save "
            f"the model's state_dict()."
        )
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def _read_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise ModelError(
            f"Expected weights in {str(path)!r}, but they cannot be read "
            f"({error.strerror or error})."
        ) from error


def _checksum_in_name(path: Path) -> str:
    found = re.search(rf"-([0-9a-f]{{{SHORTEST_CHECKSUM},64}})$", path.stem)
    if found is None:
        raise ModelError(
            f"Expected a checksum for {str(path)!r}, which is opened only if it is what its "
            f"publisher says: append '#sha256=' and the SHA-256 of the file, put its first 8 "
            f"digits into the name as in 'resnet18-f37072fd.pth', or convert it to {SAFE}."
        )
    return found[1]


def _check_is_checksum(checksum: str) -> None:
    if not re.fullmatch(rf"[0-9a-fA-F]{{{SHORTEST_CHECKSUM},64}}", checksum):
        raise ModelError(
            f"Expected a SHA-256 of {SHORTEST_CHECKSUM} to 64 hexadecimal digits, but got "
            f"{checksum!r}."
        )


def _check_content(path: Path, content: bytes, checksum: str) -> None:
    """Refuse content whose SHA-256 does not begin as expected."""
    digest = sha256(content)
    if not digest.startswith(checksum.lower()):
        raise ModelError(
            f"Expected {str(path)!r} to have a SHA-256 that begins with {checksum.lower()}, but "
            f"the one of its {len(content)} bytes is {digest}: it is damaged or another file, get "
            f"it again."
        )


def _some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - NAMES_SHOWN
    return ", ".join(listed[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
