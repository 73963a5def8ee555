"""What a site computes on is its own affair: the coordinator's choice is not even looked at."""

from dataclasses import replace

import pytest
from pretend import Node, PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs

from fedbridge.data.site_package import sites_of
from fedbridge.federation.settings import DeviceError
from fedbridge.flower.messages import RunSpec
from fedbridge.flower.site import SiteMemory, SiteWorker

SPEC = RunSpec("r", 0, "target", ("site 0", "site 1", "site 2"), "fedavg", {}, {}, "linear")
ABSENT = "toaster"
"""A device that no machine has, so that these tests mean the same on one with a GPU."""


def worker(tmp_path, spec=SPEC, **own):
    site = sites_of(blobs())[1]
    return SiteWorker(site, spec, SiteMemory(tmp_path, "r", site.name), **own)


def test_a_site_computes_on_the_cpu_whatever_the_coordinator_says(tmp_path):
    told = replace(SPEC, settings={"device": ABSENT})
    assert worker(tmp_path, told).federation.settings.device == "cpu"


def test_a_device_that_is_not_there_is_the_sites_own_error(tmp_path):
    with pytest.raises(DeviceError, match="Expected a `device` that is there"):
        worker(tmp_path, device=ABSENT)


def test_the_coordinator_hears_why_and_the_run_goes_on_without_it(tmp_path):
    nodes = nodes_of(blobs(), tmp_path)
    config = {**nodes[1].config, "site": "site 0", "role": "source", "device": ABSENT}
    nodes[1] = Node("site 0", nodes[1].app, config)
    nodes[2] = Node("site 1", nodes[2].app, {**nodes[2].config, "device": "cpu"})
    strategy, _ = run_over_pretended_flower(
        *(blobs(), "fedavg", 1, tmp_path, PretendGrid(nodes)),
        model="linear",
        lr=0.1,
        batch_size=8,
    )
    (line,) = strategy.result.history
    assert [*line["failures"]] == ["site 0"]
    assert "the device that the site names is not there" in line["failures"]["site 0"]
