"""The catalogue agrees with itself, and with the tasks that read from it."""

import re

import pytest

from fedbridge.base.errors import UnknownNameError
from fedbridge.data.load import registry
from fedbridge.data.store.catalogue import CATALOGUE, Files, ImageTree, chosen, dataset

ENTRIES = list(CATALOGUE.values())
FETCHED = [entry for entry in ENTRIES if entry.routes]
SUITES = [entry for entry in ENTRIES if isinstance(entry.layout, ImageTree)]


def ids(entry):
    return entry.name


@pytest.mark.parametrize("entry", ENTRIES, ids=ids)
def test_every_entry_says_what_it_is(entry):
    assert entry.title
    assert entry.licence
    assert entry.citation
    assert (entry.layout is None) == (not entry.routes)


@pytest.mark.parametrize("entry", FETCHED, ids=ids)
def test_every_file_has_an_address_and_a_name_of_its_own(entry):
    assert entry.home.startswith("http")
    for route in entry.routes:
        files = [download.file for download in route]
        assert len(set(files)) == len(files)
        for download in route:
            assert download.size > 0
            assert re.fullmatch(r"[\w.-]+", download.file)
            assert all(re.match(r"https?://[\w.-]+/", address) for address in download.addresses)
            assert len(set(download.addresses)) == len(download.addresses) > 0


@pytest.mark.parametrize("entry", [entry for entry in FETCHED if entry not in SUITES], ids=ids)
def test_known_files_have_checksums(entry):
    assert isinstance(entry.layout, Files)
    for content in entry.layout.contents:
        assert re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{8}", content.sha256)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_weights_carry_their_checksum_in_their_name(name):
    (content,) = dataset(name).layout.contents
    assert content.path == f"{name}-{content.sha256}.pth"


@pytest.mark.parametrize("entry", SUITES, ids=ids)
def test_published_counts_add_up(entry):
    assert entry.domains == tuple(domain.name for domain in entry.layout.domains)
    assert entry.sites == len(entry.domains)
    assert entry.samples == sum(domain.images for domain in entry.layout.domains)
    assert len(entry.layout.classes) in (0, entry.layout.n_classes)


def test_the_totals_are_those_of_the_literature():
    totals = {entry.name: entry.samples for entry in SUITES}
    assert totals == {
        "vlcs": 10_729,
        "terra": 24_330,
        "pacs": 9_991,
        "office-home": 15_588,
        "domainnet": 586_575,
    }
    older = sum(domain.also[0] for domain in dataset("terra").layout.domains)
    assert older == 24_788


def test_every_built_in_task_reads_from_one_data_set():
    named = [task for entry in ENTRIES for task in entry.tasks]
    assert sorted(named) == sorted(registry.names())


class TestNames:
    def test_unknown_names_get_a_suggestion(self):
        with pytest.raises(UnknownNameError, match="Did you mean 'fashion-mnist'"):
            dataset("fashion_mnist")

    def test_all_stands_for_what_has_files(self):
        assert chosen(["all"]) == FETCHED

    def test_each_is_chosen_once(self):
        assert chosen(["heart", "heart", "digits"]) == [dataset("heart"), dataset("digits")]
