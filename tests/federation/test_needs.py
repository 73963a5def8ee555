"""Needs of methods: met, or said in one sentence before anything runs."""

import pytest
from small import blobs, line

from fedbridge.federation.needs import Need, UnmetNeedError, check_needs
from fedbridge.models import build_model


@pytest.mark.parametrize(
    ("need", "task", "model", "said"),
    [
        (Need.CLASSES, line(), "linear", "a task with classes; task 'arrays' predicts numbers"),
        (Need.FEATURES, blobs(), "linear", "a feature extractor; `linear` has none: use `mlp`"),
        (
            Need.UNLABELLED,
            blobs(),
            "mlp:4",
            "unlabelled rows of the target; task 'arrays' has none",
        ),
    ],
)
def test_an_unmet_need_names_the_method_the_need_and_the_way_out(need, task, model, said):
    with pytest.raises(UnmetNeedError, match=f"`m` needs .*{said}"):
        check_needs("m", [need], task, build_model(model, task), model)


def test_met_needs_pass():
    task = blobs(target_rows=24, n_target=9)
    check_needs("m", Need, task, build_model("mlp:4", task), "mlp:4")
