"""The paper's tables and figures as data: complete, readable, and nothing in them that we lack."""

import pytest

from fedbridge.experiments import catalogue


@pytest.mark.parametrize("name", catalogue.names())
def test_every_file_can_be_read(name):
    assert catalogue.load(name).name == name
