"""Vectors on the wire: what arrives is what the sender knows of, and nothing is lost for good."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.base.errors import NonFiniteError, OptionError, ShapeError
from fedbridge.flower.codec import (
    CHUNK,
    CODECS,
    EncodingError,
    Feedback,
    decode,
    encode,
)

LOSSY = ("bfloat16", "int8")
LARGEST = torch.finfo(torch.float32).max
SMALLEST = 2.0**-149


def normal(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@st.composite
def vectors(draw):
    """Vectors of all lengths around a chunk and of all scales, with zeros and outliers in them."""
    size = draw(st.sampled_from([1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]))
    vector = normal(size, draw(st.integers(0, 10**6)))
    vector *= 10.0 ** draw(st.sampled_from([-44, -30, -6, 0, 6, 30]))
    kind = draw(st.sampled_from(["plain", "zero", "half zero", "outlier", "largest"]))
    if kind == "zero":
        vector.zero_()
    elif kind == "half zero":
        vector[: size // 2] = 0.0
    elif kind == "outlier":
        vector[size // 2] *= 1e6
    elif kind == "largest":
        vector[size // 2] = -LARGEST
    return vector


@given(vectors(), st.sampled_from(list(CODECS)), st.booleans())
def test_the_receiver_sees_what_the_sender_says_bit_for_bit(vector, codec, owing):
    carry = 0.01 * vector.flip(0) if owing else None
    tensors, decoded, lost = encode(vector, codec, carry)
    assert torch.equal(decode(tensors, codec, len(vector)), decoded)
    assert bool(decoded.isfinite().all())
    assert lost is None or bool(lost.isfinite().all())


@given(vectors())
def test_float32_changes_nothing_and_keeps_nothing(vector):
    tensors, decoded, carry = encode(vector, "float32", torch.ones_like(vector))
    assert torch.equal(decoded, vector)
    assert torch.equal(tensors["values"], vector)
    assert carry is None


@given(vectors())
def test_bfloat16_is_right_to_eight_bits(vector):
    decoded = encode(vector, "bfloat16").decoded
    bound = vector.double().abs() * 2.0**-8 + 2.0**-134
    assert bool(((decoded.double() - vector.double()).abs() <= bound).all())


@given(vectors())
def test_int8_is_right_to_half_a_step_of_its_chunk(vector):
    decoded = encode(vector, "int8").decoded
    for ours, theirs in zip(decoded.split(CHUNK), vector.double().split(CHUNK), strict=True):
        largest = float(theirs.abs().max())
        half_a_step = largest / 254 if largest < LARGEST else largest / 128
        bound = half_a_step * (1 + 1e-6) + 64 * SMALLEST
        assert float((ours.double() - theirs).abs().max()) <= bound


@given(vectors(), st.sampled_from(LOSSY))
def test_what_was_lost_is_the_difference(vector, codec):
    _, decoded, carry = encode(vector, codec)
    lost = vector.double() - decoded.double()
    assert bool(((carry.double() - lost).abs() <= 1e-7 * lost.abs() + SMALLEST).all())


@pytest.mark.parametrize("codec", LOSSY)
def test_a_zero_vector_stays_zero_and_loses_nothing(codec):
    _, decoded, carry = encode(torch.zeros(CHUNK + 3), codec)
    assert torch.equal(decoded, torch.zeros(CHUNK + 3))
    assert torch.equal(carry, torch.zeros(CHUNK + 3))


def test_a_single_entry_is_exact_to_the_last_digits_in_int8():
    vector = torch.tensor([0.1234567])
    torch.testing.assert_close(encode(vector, "int8").decoded, vector, rtol=2e-7, atol=0.0)


def test_every_chunk_has_its_own_step():
    vector = torch.cat((torch.full((CHUNK,), 1e4), torch.full((CHUNK,), 1e-4)))
    torch.testing.assert_close(encode(vector, "int8").decoded, vector, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("codec", LOSSY)
def test_feedback_pays_back_what_rounding_lost(codec):
    vector = normal(1000)
    feedback, rounds = Feedback(codec), 200
    with_it, without = torch.zeros(1000).double(), torch.zeros(1000).double()
    for number in range(rounds):
        with_it += feedback.encode("train", number, vector).decoded
        without += encode(vector, codec).decoded
    truth = rounds * vector.double()
    one_message = float((encode(vector, codec).decoded - vector).norm())
    assert float((without - truth).norm()) > 0.99 * rounds * one_message
    assert float((with_it - truth).norm()) < 2 * one_message


@pytest.mark.parametrize("codec", LOSSY)
def test_the_running_sum_is_short_of_the_truth_by_the_last_carry_only(codec):
    feedback, owed = Feedback(codec), torch.zeros(700).double()
    for number in range(30):
        vector = normal(700, number) * 0.8**number
        encoded = feedback.encode("train", number, vector)
        owed += vector.double() - encoded.decoded.double()
        torch.testing.assert_close(owed, encoded.carry.double(), rtol=0.0, atol=2e-6)


def test_kinds_of_vectors_do_not_pay_for_each_other():
    feedback, alone = Feedback("int8"), Feedback("int8")
    for number in range(3):
        feedback.encode("probe", number, 100 * normal(50, number))
        ours = feedback.encode("train", number, normal(50, 9)).decoded
        assert torch.equal(ours, alone.encode("train", number, normal(50, 9)).decoded)


def test_a_round_asked_for_again_gets_the_same_answer():
    feedback, vector = Feedback("int8"), normal(50)
    first = feedback.encode("train", 1, vector).decoded
    second = feedback.encode("train", 2, vector).decoded
    assert not torch.equal(first, second)
    assert torch.equal(feedback.encode("train", 2, vector).decoded, second)
    assert torch.equal(feedback.encode("train", 1, vector).decoded, first)


def test_a_site_that_restarts_goes_on_from_its_memory():
    feedback, vector = Feedback("int8"), normal(50)
    for number in (1, 2):
        feedback.encode("train 0", number, vector)
    feedback.encode("probe", 2, -vector)
    again = Feedback("int8")
    again.remember(feedback.memory())
    for number in (2, 3):
        for key in ("train 0", "probe"):
            ours = again.encode(key, number, vector).decoded
            assert torch.equal(ours, feedback.encode(key, number, vector).decoded)


def test_a_model_of_another_size_starts_afresh():
    feedback = Feedback("int8")
    feedback.encode("train", 1, normal(50))
    decoded = feedback.encode("train", 2, normal(60)).decoded
    assert torch.equal(decoded, encode(normal(60), "int8").decoded)


def test_nothing_is_remembered_where_nothing_is_lost():
    feedback = Feedback("float32")
    feedback.encode("train", 1, normal(5))
    assert feedback.memory() == {}


def encoded_bytes(codec, size):
    """Bytes of a vector of so many entries, without the envelope of the message."""
    return sum(dtype.itemsize * length for dtype, length in CODECS[codec].layout(size).values())


@given(vectors(), st.sampled_from(list(CODECS)))
def test_bytes_are_counted_as_they_are_sent(vector, codec):
    sent = sum(t.numel() * t.element_size() for t in encode(vector, codec).tensors.values())
    assert encoded_bytes(codec, len(vector)) == sent


def test_shares_of_the_bytes():
    size = 100 * CHUNK
    whole = encoded_bytes("float32", size)
    assert whole == 4 * size
    assert encoded_bytes("bfloat16", size) / whole == 0.5
    assert 0.25 < encoded_bytes("int8", size) / whole < 0.255


@pytest.mark.parametrize("codec", LOSSY)
def test_only_types_that_an_array_on_the_wire_can_have_are_sent(codec):
    numpy_types = {t.numpy().dtype.name for t in encode(normal(5), codec).tensors.values()}
    assert numpy_types <= {"int8", "int16", "float32"}


def hostile():
    """Tensors that no honest encoder writes for 300 entries."""
    fine = {codec: dict(encode(normal(300), codec).tensors) for codec in CODECS}
    steps = fine["int8"]["steps"]
    return {
        "nothing": ("int8", {}),
        "one missing": ("int8", {"values": fine["int8"]["values"]}),
        "one more": ("float32", {**fine["float32"], "x" * 10**6: steps}),
        "another name": ("float32", {"vector": normal(300)}),
        "shape that broadcasts": ("float32", {"values": torch.ones(1)}),
        "two dimensions": ("float32", {"values": torch.ones(1, 300)}),
        "no dimension": ("float32", {"values": torch.tensor(1.0)}),
        "one step for all": ("int8", {**fine["int8"], "steps": steps[:1]}),
        "too short": ("bfloat16", {"values": fine["bfloat16"]["values"][:-1]}),
        "double": ("float32", {"values": normal(300).double()}),
        "half": ("bfloat16", {"values": normal(300).to(torch.bfloat16)}),
        "unsigned": ("int8", {**fine["int8"], "values": torch.zeros(300, dtype=torch.uint8)}),
        "list": ("float32", {"values": [0.0] * 300}),
        "nan": ("float32", {"values": torch.full((300,), torch.nan)}),
        "inf in bfloat16": ("bfloat16", {"values": torch.full((300,), 0x7F80, dtype=torch.int16)}),
        "nan step": ("int8", {**fine["int8"], "steps": torch.tensor([1.0, torch.nan])}),
        "inf step": ("int8", {**fine["int8"], "steps": torch.tensor([torch.inf, 1.0])}),
        "inf step of zeros": (
            "int8",
            {"values": torch.zeros(300, dtype=torch.int8), "steps": torch.full((2,), torch.inf)},
        ),
        "overflow": (
            "int8",
            {"values": torch.full((300,), 127).to(torch.int8), "steps": torch.full((2,), 1e38)},
        ),
    }


@pytest.mark.parametrize("case", hostile())
def test_what_no_encoder_wrote_is_refused_in_a_short_sentence(case):
    codec, tensors = hostile()[case]
    with pytest.raises(EncodingError, match=r"^Expected .*, but .*\.$") as caught:
        decode(tensors, codec, 300)
    assert len(str(caught.value)) < 200


def test_a_wrong_codec_is_named_with_the_nearest():
    with pytest.raises(OptionError, match=r"float32, bfloat16, int8, but got 'int'.*'int8'"):
        encode(normal(3), "int")
    with pytest.raises(OptionError, match="'bf16'"):
        Feedback("bf16")


@pytest.mark.parametrize("vector", [normal(3).double(), normal(4).view(2, 2), torch.zeros(0)])
def test_only_float32_vectors_are_encoded(vector):
    with pytest.raises(ShapeError, match="float32 numbers in one dimension"):
        encode(vector, "int8")


def test_non_finite_vectors_and_foreign_carries_are_refused():
    with pytest.raises(NonFiniteError, match="finite vector"):
        encode(torch.tensor([1.0, torch.nan]), "bfloat16")
    with pytest.raises(NonFiniteError, match="finite carry"):
        encode(torch.ones(2), "int8", torch.tensor([0.0, torch.inf]))
    with pytest.raises(ShapeError, match="2 entries, but got 1"):
        encode(torch.ones(2), "int8", torch.ones(1))
