"""Tests on the real data sets run where ``FEDBRIDGE_DATA`` holds them."""

from __future__ import annotations

import pytest

from fedbridge.base.places import VARIABLE, dataset_folder


def needs(name: str) -> pytest.MarkDecorator:
    """Skip unless this data set is there."""
    return pytest.mark.skipif(
        dataset_folder(name) is None, reason=f"{VARIABLE} does not hold {name!r}"
    )
