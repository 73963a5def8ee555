"""Every protected message counts, in every run, and nobody but the site can reset the count."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedbridge.engines.flower.ledger import Ledger, PrivacySpentError
from fedbridge.engines.flower.privacy import LocalPrivacy, composed_epsilon, epsilon
from fedbridge.errors import FedbridgeError

PRIVACY = LocalPrivacy(clip=1.0, noise=8.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site" / "privacy.json"


def test_nothing_sent_has_cost_nothing(path):
    assert Ledger(path).messages == 0
    assert Ledger(path).epsilon(1e-5) == 0.0


def test_messages_add_up_over_processes_and_runs(path):
    for _ in range(5):
        Ledger(path).spend(PRIVACY)
    assert Ledger(path).messages == 5
    assert Ledger(path).epsilon(1e-5) == epsilon(PRIVACY, 5)


def test_another_noise_is_added_to_what_was_sent_before(path):
    louder = LocalPrivacy(clip=1.0, noise=4.0)
    for privacy in (PRIVACY, louder, louder):
        Ledger(path).spend(privacy)
    together = Ledger(path).epsilon(1e-5)
    assert together == composed_epsilon({8.0: 1, 4.0: 2}, 1e-5)
    assert epsilon(louder, 2) < together < epsilon(louder, 3)


def test_a_quarter_of_the_variance_costs_as_much_as_four_messages():
    assert composed_epsilon({4.0: 1}, 1e-5) == pytest.approx(composed_epsilon({8.0: 4}, 1e-5))


def test_beyond_the_budget_nothing_is_sent_and_nothing_is_counted(path):
    budget = 1.001 * epsilon(PRIVACY, 3)
    for _ in range(3):
        Ledger(path).spend(PRIVACY, budget)
    with pytest.raises(PrivacySpentError, match=r"within an epsilon of .* one more message"):
        Ledger(path).spend(PRIVACY, budget)
    assert Ledger(path).messages == 3


def test_without_noise_no_budget_is_enough(path):
    with pytest.raises(PrivacySpentError, match="make it inf"):
        Ledger(path).spend(LocalPrivacy(1.0, 0.0), budget=1e9)


def test_messages_at_the_same_time_are_all_counted(path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Ledger(path).spend(PRIVACY), range(20)))
    assert Ledger(path).messages == 20


def test_the_file_is_the_sites_own(path):
    Ledger(path).spend(PRIVACY)
    assert path.stat().st_mode & 0o077 == 0


def content(**changed):
    return json.dumps({"format": 1, "sent": [{"noise": 1.0, "messages": 2}], **changed})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        content(format=2),
        content(sent=None),
        content(sent=[{"noise": 1.0, "messages": -2}]),
        content(sent=[{"noise": 1.0, "messages": 1.5}]),
        content(sent=[{"noise": -1.0, "messages": 1}]),
        content(sent=[{"noise": "many", "messages": 1}]),
    ],
)
def test_a_damaged_count_is_never_taken_for_none(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(FedbridgeError, match="restore the file"):
        Ledger(path).spend(PRIVACY)
    assert path.read_text() == text
