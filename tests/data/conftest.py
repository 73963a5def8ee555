"""Tiny data sets for the built-in tasks, and a mark for tests that want the real ones."""

import pytest
import tiny_data


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory):
    """Written once; tests that change a file take `own_root`."""
    root = tmp_path_factory.mktemp("tiny")
    tiny_data.write_all(root)
    return root


@pytest.fixture
def tiny(tiny_root, monkeypatch):
    """`FEDBRIDGE_DATA` holds tiny data sets, not to be changed."""
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tiny_root))
    return tiny_root


@pytest.fixture
def own_root(tmp_path, monkeypatch):
    """An empty `FEDBRIDGE_DATA` of the test's own."""
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
    return tmp_path
