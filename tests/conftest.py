"""Settings that all tests share."""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from fedbridge import methods
from fedbridge.base import own_code
from fedbridge.core.rulebook import registry as rulebook
from fedbridge.data.images import cache as image_cache
from fedbridge.report import page

settings.register_profile(
    "fedbridge",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedbridge")

# A shell starts what runs in the background with Ctrl-C ignored; tests of it need it heard.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """What a test writes need not survive a power cut; tests of a full disk put in their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_trace_in_the_users_cache(tmp_path_factory):
    """Images that tests decode, and the chart library, are kept in folders of this session."""
    images, charts = (tmp_path_factory.mktemp(name) for name in ("image-cache", "chart-library"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_cache, "cache_folder", lambda: images)
        patch.setattr(page, "cache_folder", lambda: charts)
        yield


@pytest.fixture
def own_code_forgotten(monkeypatch, tmp_path):
    """No rule, method or module that a test brings outlives it."""
    for registry in (methods._registry, rulebook):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(methods, "_OWN", set())
    monkeypatch.setattr(own_code, "_files", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
