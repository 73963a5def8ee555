"""Every mistake is refused with one sentence: what was wrong, what was expected, what to do."""

import pytest
import torch
from helpers import RULES, random_round, tensor

import fedbridge as fb
from fedbridge import Blocks, FedbridgeError
from fedbridge.base.errors import (
    NonFiniteError,
    OptionError,
    ShapeError,
    UnknownNameError,
    UnknownOptionError,
)

T, S = torch.ones(4), torch.ones(3, 4)
BATCHES = torch.ones(2, 4)


def complaint(error_type, rule="fedda", target=T, sources=S, **given):
    """The message with which a round is refused."""
    with pytest.raises(error_type) as caught:
        fb.aggregate(rule, target=target, sources=sources, **given)
    assert isinstance(caught.value, FedbridgeError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"target": torch.ones(5)}, ["`target`", "(4,)", "(5,)"]),
        ({"target": torch.ones(1, 4)}, ["`target`", "(4,)", "(1, 4)"]),
        ({"target": torch.tensor(1.0)}, ["`target`", "(4,)", "()"]),
        ({"sources": torch.ones(3, 5)}, ["`target`", "(5,)", "(4,)"]),
        ({"sources": torch.ones(4)}, ["`sources`", "(N, m)", "a matrix of one row"]),
        ({"sources": torch.ones(2, 3, 4)}, ["`sources`", "(N, m)", "(2, 3, 4)"]),
        ({"sources": torch.ones(0, 4)}, ["at least one source", "empty"]),
        ({"sources": torch.ones(3, 0), "target": torch.ones(0)}, ["at least one entry"]),
        ({"batches": torch.ones(2, 5)}, ["`batches`", "(B, 4)", "(2, 5)"]),
        ({"batches": torch.ones(4)}, ["`batches`", "(B, 4)", "(4,)"]),
        ({"batches": torch.ones(0, 4)}, ["`batches`", "(0, 4)"]),
        ({"weights": [1.0, 2.0]}, ["`weights`", "3 sample counts", "(2,)"]),
        ({"weights": [[1.0, 2.0, 3.0]]}, ["`weights`", "(1, 3)"]),
        ({"rule": "fedavg", "weights": [1.0, 2.0, 3.0]}, ["all 4 clients", "target first", "3"]),
        ({"sigma2": [1.0, 2.0, 3.0], "blocks": [2, 2]}, ["`sigma2`", "one per block (2)", "(3,)"]),
        ({"beta": [0.1, 0.2]}, ["`beta`", "one per source (3)"]),
        ({"blocks": [2, 1]}, ["add up to the 4 entries", "[2, 1]", "add up to 3"]),
        ({"blocks": [2, 3]}, ["add up to the 4 entries", "add up to 5"]),
        ({"blocks": [4, 0]}, ["'block 1' has size 0"]),
        ({"blocks": [5, -1]}, ["'block 1' has size -1"]),
        ({"blocks": []}, ["at least one block"]),
        ({"blocks": Blocks.whole(3)}, ["add up to the 4 entries", "add up to 3"]),
        ({"sources": torch.ones(3, 4, dtype=torch.complex64)}, ["`sources`", "real", "complex64"]),
    ],
)
def test_shapes_that_do_not_fit(given, parts):
    message = complaint(ShapeError, **given)
    assert message.startswith("Expected")
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0])
def test_a_target_that_is_not_the_mean_of_its_batches_is_in_another_unit(factor):
    drawn = random_round(0)
    message = complaint(
        ShapeError, target=factor * drawn.target, sources=drawn.sources, batches=drawn.batches
    )
    assert "plain mean of `batches`" in message
    assert "multiply each batch update by the number of batches" in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_mean_taken_in_a_short_type_is_good_enough(dtype):
    drawn = random_round(0, m=50, b=9)
    batches = drawn.batches.to(dtype)
    found = fb.aggregate("fedda-auto", batches.mean(0), drawn.sources.to(dtype), batches)
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("client", "row"), [("the target", None), ("source 0", 0), ("source 2", 2)]
)
def test_not_a_number_names_the_client_and_the_block(rule, bad, dtype, client, row):
    target, sources = T.to(dtype).clone(), S.to(dtype).clone()
    (target if row is None else sources[row])[3] = bad
    message = complaint(
        NonFiniteError,
        rule,
        target,
        sources,
        sigma2=1.0,
        blocks=Blocks(("conv.weight", "conv.bias"), (3, 1)),
    )
    assert f"{client} has 1 NaN or Inf in 'conv.bias'" in message


def test_without_blocks_the_whole_model_is_named():
    message = complaint(NonFiniteError, target=tensor(1.0, float("nan"), 1.0, float("inf")))
    assert "the target has 2 NaN or Inf in 'model'" in message


def test_not_a_number_in_a_long_float32_block():
    sources = torch.ones(2, 100_000)
    sources[1, 99_999] = float("nan")
    message = complaint(NonFiniteError, target=torch.ones(100_000), sources=sources)
    assert "source 1 has 1 NaN or Inf" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_in_a_batch_names_the_target_the_batch_and_the_block(bad):
    batches = torch.ones(3, 4)
    batches[2, 1] = bad
    message = complaint(NonFiniteError, "fedda-auto", batches=batches, blocks=[1, 3])
    assert "batch 2 of the target holds NaN or Inf in 'block 1'" in message
    with pytest.raises(NonFiniteError, match=r"batch 2 of the target.*'model'"):
        fb.estimate(batches, S)


def test_estimate_names_the_source_that_is_not_a_number():
    sources = S.clone()
    sources[1, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="source 1 has 1 NaN or Inf in 'model'"):
        fb.estimate(torch.randn(3, 4), sources)


def test_lengths_beyond_float64_are_refused_and_not_called_nan():
    message = complaint(NonFiniteError, "fedgp", target=T.double(), sources=1e200 * S.double())
    assert "divide all updates by a common factor" in message


@pytest.mark.parametrize("beta", [1.4, -0.1, float("nan"), float("inf"), [0.5, 0.5, 1.1]])
@pytest.mark.parametrize("rule", ["fedda", "fedgp"])
def test_beta_lies_between_0_and_1(rule, beta):
    assert "Expected `beta` in [0, 1], but got" in complaint(OptionError, rule, beta=beta)


@pytest.mark.parametrize("weights", [[1, -1, 1], [1, float("nan"), 1], [1, float("inf"), 1]])
@pytest.mark.parametrize("rule", RULES)
def test_weights_are_not_negative_and_finite(rule, weights):
    message = complaint(OptionError, rule, weights=weights, sigma2=1.0)
    assert "`weights` to be finite and not negative" in message


def test_a_negative_count_of_the_target_is_refused():
    message = complaint(OptionError, "fedavg", weights=[-1, 1, 1, 1])
    assert "`weights` to be finite and not negative" in message


def test_some_source_must_count():
    assert "at least one source with a weight above 0" in complaint(OptionError, weights=[0, 0, 0])


@pytest.mark.parametrize("sigma2", [-1.0, float("nan"), float("inf"), [1.0, -1.0]])
def test_a_known_noise_is_not_negative_and_finite(sigma2):
    message = complaint(OptionError, "fedda-auto", sigma2=sigma2, blocks=[2, 2])
    assert "`sigma2` to be finite and not negative" in message


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("fedpg", "fedgp"),
        ("FedGP", "fedgp"),
        ("fedgp_auto", "fedgp-auto"),
        ("fed-da-joint", "fedda-joint"),
        ("fed_avg", "fedavg"),
        ("trimmedmean", "trimmed-mean"),
    ],
)
def test_an_unknown_rule_suggests_the_nearest_name(asked, meant):
    message = complaint(UnknownNameError, asked)
    assert f"got {asked!r}. Did you mean {meant!r}?" in message
    assert "source-only, target-only" in message


@pytest.mark.parametrize("rule", [None, 3])
def test_a_rule_is_a_name_or_a_function(rule):
    assert "to be a function" in complaint(OptionError, rule)


@pytest.mark.parametrize(
    ("rule", "option", "hint"),
    [
        ("fedda", "betta", "its options are beta. Did you mean 'beta'?"),
        ("fedgp", "filters", "Did you mean 'filter'?"),
        ("fedgp-auto", "halfline", "Did you mean 'half_line'?"),
        ("fedgp-joint", "correct-noise", "Did you mean 'correct_noise'?"),
        ("fedda-auto", "beta", "its options are scope"),
        ("target-only", "beta", "it has no options"),
        ("median", "trim", "it has no options"),
        ("trimmed-mean", "trimm", "Did you mean 'trim'?"),
    ],
)
def test_an_unknown_option_suggests_the_nearest_one(rule, option, hint):
    message = complaint(UnknownOptionError, rule, sigma2=1.0, **{option: 0.5})
    assert f"Expected an option that rule {rule!r} has, but got {option!r}" in message
    assert hint in message


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_swallows_an_unknown_option(rule):
    complaint(UnknownOptionError, rule, sigma2=1.0, nonsense=1)


def test_an_unknown_option_is_a_type_error_as_for_any_function():
    with pytest.raises(TypeError):
        fb.aggregate("fedda", T, S, nonsense=1)


@pytest.mark.parametrize(
    ("batches", "sources", "says"),
    [
        (torch.ones(2, 3), S, r"\(B, 4\).*\(2, 3\)"),
        (BATCHES, torch.ones(0, 4), "at least one source"),
        (BATCHES, torch.ones(4), r"\(N, m\)"),
    ],
)
def test_estimate_refuses_shapes_that_do_not_fit(batches, sources, says):
    with pytest.raises(ShapeError, match=says):
        fb.estimate(batches, sources)
