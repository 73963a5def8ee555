"""How a vector travels: as it is, or rounded to fewer bytes, with what was lost paid back later.

``float32`` changes nothing. ``bfloat16`` keeps 8 bits of every number. ``int8`` cuts the vector
into chunks of ``CHUNK`` entries and sends, per chunk, the step ``s = max|x| / 127`` and the whole
number of steps nearest to every entry.

Rounding loses something in every message, and always the same where a vector hardly changes. So
a site keeps what was lost and adds it to the next vector of the same kind (*error feedback*):

    y_t = x_t + c_{t-1},   sent: Q(y_t),   c_t = y_t − Q(y_t)   ⟹   Σ Q(y_t) = Σ x_t − c_T .

Over rounds nothing is lost but the last rounding, at most half a step. Nearest rounding is
therefore enough, and, unlike a random one, it gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedbridge.base.errors import FedbridgeError, NonFiniteError, OptionError, ShapeError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHUNK = 256
"""Entries of an int8 vector that share a step."""

LEVELS = 127
LARGEST = torch.finfo(torch.float32).max
LARGEST_STEP = LARGEST / (LEVELS + 1)
"""No multiple that int8 can hold overflows."""


class EncodingError(FedbridgeError):
    """A message whose tensors are not what its codec writes."""


class Encoded(NamedTuple):
    """A vector ready to be sent.

    Attributes:
        tensors: what to send, by name.
        decoded: what the receiver will see, bit for bit.
        carry: what rounding lost, to be added to the next vector of the same kind; None for a
            codec that loses nothing.
    """

    tensors: Mapping[str, Tensor]
    decoded: Tensor
    carry: Tensor | None


@dataclass(frozen=True)
class _Codec:
    """Two functions, and the tensors that pass between them.

    Attributes:
        pack: tensors of a vector.
        unpack: the vector that tensors of the right types and shapes stand for.
        layout: type and length of every tensor, for a vector of so many entries.
    """

    pack: Callable[[Tensor], dict[str, Tensor]]
    unpack: Callable[[Mapping[str, Tensor]], Tensor]
    layout: Callable[[int], dict[str, tuple[torch.dtype, int]]]


def encode(vector: Tensor, codec: str, carry: Tensor | None = None) -> Encoded:
    """Encode a finite float32 vector.

    Args:
        vector: (m,) what is to be sent.
        codec: one of ``CODECS``.
        carry: what the last message of this kind lost; None for the first one.
    """
    chosen = _codec(codec)
    _check_vector(vector, "vector")
    if codec == "float32":
        tensors = chosen.pack(vector)
        return Encoded(tensors, tensors["values"], None)
    total = vector
    if carry is not None:
        _check_vector(carry, "carry")
        if carry.shape != vector.shape:
            raise ShapeError(
                f"Expected a carry of the vector's {len(vector)} entries, but got {len(carry)}."
            )
        total = (vector + carry).clamp(-LARGEST, LARGEST)
    tensors = chosen.pack(total)
    decoded = chosen.unpack(tensors)
    return Encoded(tensors, decoded, total - decoded)


def decode(tensors: Mapping[str, Tensor], codec: str, size: int) -> Tensor:
    """The float32 vector (size,) that some tensors from elsewhere stand for.

    Raises:
        EncodingError: they are not what this codec writes for a vector of this size.
    """
    chosen = _codec(codec)
    layout = chosen.layout(size)
    if tensors.keys() != layout.keys():
        raise EncodingError(
            f"Expected the tensors {', '.join(layout)} of a vector in {codec}, but got "
            f"{len(tensors)} of other names."
        )
    for name, (dtype, length) in layout.items():
        found = tensors[name]
        if not isinstance(found, Tensor) or found.dtype != dtype or found.shape != (length,):
            raise EncodingError(
                f"Expected {name!r} of a vector in {codec} to be {dtype} of shape ({length},), "
                f"but got {_described(found)}."
            )
    decoded = chosen.unpack(tensors)
    if not bool(decoded.isfinite().all()):
        raise EncodingError(f"Expected a finite vector in {codec}, but it holds NaN or Inf.")
    return decoded


class Feedback:
    """What one site's roundings have lost, per kind of vector: part of the site's own memory.

    Kinds are told apart by a key (the model that was trained, or a probe): what a training update
    lost must not be added to a gradient. A round that is asked for again, because an answer was
    lost or the coordinator went back to a checkpoint, starts from what it started from before.
    """

    def __init__(self, codec: str) -> None:
        _codec(codec)
        self.codec = codec
        self._kept: dict[str, _Kept] = {}

    def encode(self, key: str, round: int, vector: Tensor) -> Encoded:
        """Encode a vector of one kind with what its predecessor lost."""
        past = self._kept.get(key)
        carry = None if past is None else past.before(round)
        if carry is not None and carry.shape != vector.shape:
            carry = None
        encoded = encode(vector, self.codec, carry)
        if encoded.carry is not None:
            self._kept[key] = _Kept(round, carry, encoded.carry)
        return encoded

    def memory(self) -> dict[str, Tensor]:
        """All of it as named tensors."""
        tensors: dict[str, Tensor] = {}
        for key, kept in self._kept.items():
            tensors[f"{key}|round"] = torch.tensor(kept.round)
            tensors[f"{key}|after"] = kept.after
            if kept.start is not None:
                tensors[f"{key}|start"] = kept.start
        return tensors

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Go on from what ``memory`` gave."""
        keys = [name.removesuffix("|round") for name in memory if name.endswith("|round")]
        self._kept = {
            key: _Kept(
                int(memory[f"{key}|round"]), memory.get(f"{key}|start"), memory[f"{key}|after"]
            )
            for key in keys
        }


@dataclass(frozen=True)
class _Kept:
    """The carry that a round started from, and the one that it left."""

    round: int
    start: Tensor | None
    after: Tensor

    def before(self, round: int) -> Tensor | None:
        """The carry that a round starts from; None for one earlier than what is remembered."""
        if round == self.round:
            return self.start
        return self.after if round > self.round else None


def _pack_bfloat16(vector: Tensor) -> dict[str, Tensor]:
    """The bits as whole numbers: Flower's arrays do not know bfloat16."""
    largest = torch.finfo(torch.bfloat16).max
    return {"values": vector.clamp(-largest, largest).to(torch.bfloat16).view(torch.int16)}


def _pack_int8(vector: Tensor) -> dict[str, Tensor]:
    chunks = _in_chunks(vector)
    steps = (chunks.abs().amax(1) / LEVELS).clamp(max=LARGEST_STEP)
    divisors = torch.where(steps > 0, steps, 1.0)[:, None]
    values = (chunks / divisors).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
    return {"values": values.flatten()[: len(vector)].clone(), "steps": steps}


def _unpack_int8(tensors: Mapping[str, Tensor]) -> Tensor:
    values = tensors["values"]
    chunks = _in_chunks(values).to(torch.float32) * tensors["steps"][:, None]
    return chunks.flatten()[: len(values)]


def _in_chunks(vector: Tensor) -> Tensor:
    """(chunks, CHUNK) the vector, zeros after its end."""
    return functional.pad(vector, (0, -len(vector) % CHUNK)).view(-1, CHUNK)


CODECS: Mapping[str, _Codec] = {
    "float32": _Codec(
        lambda vector: {"values": vector.clone()},
        lambda tensors: tensors["values"].clone(),
        lambda size: {"values": (torch.float32, size)},
    ),
    "bfloat16": _Codec(
        _pack_bfloat16,
        lambda tensors: tensors["values"].view(torch.bfloat16).to(torch.float32),
        lambda size: {"values": (torch.int16, size)},
    ),
    "int8": _Codec(
        _pack_int8,
        _unpack_int8,
        lambda size: {"values": (torch.int8, size), "steps": (torch.float32, -(-size // CHUNK))},
    ),
}
"""The codecs by name."""


def check_codec(name: str) -> None:
    """Refuse a codec that there is not."""
    if name not in CODECS:
        raise OptionError(
            f"Expected a codec of {', '.join(CODECS)}, but got {name!r}.{nearest(name, CODECS)}"
        )


def _codec(name: str) -> _Codec:
    check_codec(name)
    return CODECS[name]


def _check_vector(vector: Tensor, name: str) -> None:
    if vector.dtype != torch.float32 or vector.ndim != 1 or len(vector) == 0:
        raise ShapeError(
            f"Expected a {name} of float32 numbers in one dimension, but got {_described(vector)}."
        )
    if not bool(vector.isfinite().all()):
        raise NonFiniteError(f"Expected a finite {name} to encode, but it holds NaN or Inf.")


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
