"""What the tests of deployments share."""

import pytest
from deploying import deployment


@pytest.fixture
def made(tmp_path):
    """A deployment as ``deploy init`` leaves it."""
    return deployment(tmp_path / "dep")
