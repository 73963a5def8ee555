"""Settings that all tests share."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

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
