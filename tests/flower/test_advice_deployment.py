"""Advice over real Flower processes with TLS and keys, and with a folder for every site."""

import pytest
from small import blobs, same_numbers

import fedbridge as fb
from fedbridge.methods import names

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


def test_the_verdict_of_real_processes_is_that_of_one_machine():
    task, told = blobs(target_rows=24, rows=41), []
    options = {"after": 2, "lr": 0.1, "batch_size": 8}
    here = fb.advise(task, workers=1, **options)
    there = fb.advise(
        task, engine="flower", progress=lambda share, text: told.append((share, text)), **options
    )
    assert there.verdict == here.verdict
    same_numbers(there.to_json(), here.to_json())
    assert told[0] == (0.0, "starting Flower")
    assert told[-1] == (pytest.approx(1.0), "round 2 of 2")
    assert "advice" not in names(), "it is no method that anybody is offered"
