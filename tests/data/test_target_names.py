"""Which site a user means by a target's name."""

import pytest

from fedbridge.data.options import check_target_name
from fedbridge.errors import UnknownTargetError

DOMAINS = ("+90%", "+80%", "-90%", "Real World", "va")


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("-90%", "-90%"),
        ("minus90", "-90%"),
        ("Plus80", "+80%"),
        ("real-world", "Real World"),
        ("VA", "va"),
    ],
)
def test_a_target_is_known_however_it_is_spelled(spelled, name):
    assert check_target_name(spelled, DOMAINS) == name


@pytest.mark.parametrize("unknown", ["90", "90%", "real", "", ["+90%"], 5])
def test_any_other_name_is_refused(unknown):
    with pytest.raises(UnknownTargetError, match=r"Sites: '\+90%', '\+80%', '-90%'"):
        check_target_name(unknown, DOMAINS)


def test_a_spelling_that_two_sites_could_mean_is_refused():
    assert check_target_name("site-1", ("site-1", "site 1")) == "site-1"
    with pytest.raises(UnknownTargetError, match="Sites: 'site-1', 'site 1'"):
        check_target_name("Site_1", ("site-1", "site 1"))
