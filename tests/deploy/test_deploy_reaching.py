"""Is there a link, and is it the right one?"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from links import answering

import fedbridge
from fedbridge.deploy.reaching import ClockError, LinkError, reach_link, split_address
from fedbridge.flower import pki
from fedbridge.flower.pki import check_authority, make_certificates


@pytest.fixture
def certificates(tmp_path):
    return make_certificates(tmp_path / "right", ["localhost", "127.0.0.1"])


def test_a_link_with_the_right_certificate_is_reached(certificates):
    with answering(certificates) as port:
        reach_link(f"localhost:{port}", certificates.ca)


def test_a_link_of_another_authority_is_refused(tmp_path, certificates):
    other = make_certificates(tmp_path / "other", ["localhost"])
    with (
        answering(certificates) as port,
        pytest.raises(LinkError, match=r"signed by ca\.crt.*compare ca\.crt"),
    ):
        reach_link(f"localhost:{port}", other.ca)


def test_a_certificate_for_another_host_is_refused(tmp_path):
    elsewhere = make_certificates(tmp_path / "there", ["link.example.org"])
    with answering(elsewhere) as port, pytest.raises(LinkError, match="renew the certificate"):
        reach_link(f"127.0.0.1:{port}", elsewhere.ca)


def test_a_program_without_tls_is_no_link(certificates):
    with answering(None) as port, pytest.raises(LinkError, match="to speak TLS"):
        reach_link(f"127.0.0.1:{port}", certificates.ca)


def test_another_web_server_is_no_link(certificates):
    with answering(certificates, status=404) as port, pytest.raises(LinkError, match="404"):
        reach_link(f"127.0.0.1:{port}", certificates.ca)


def test_nobody_there_is_said(certificates):
    with answering(certificates) as port:
        pass
    with pytest.raises(LinkError, match="start it with `fedbridge deploy link`"):
        reach_link(f"127.0.0.1:{port}", certificates.ca)


def test_a_host_without_a_name_is_said(certificates):
    with pytest.raises(LinkError, match="cannot be resolved"):
        reach_link("nowhere.invalid:8000", certificates.ca)


def test_addresses_are_hosts_and_ports():
    assert split_address("link.example.org:8000") == ("link.example.org", 8000)
    assert split_address("[::1]:8000") == ("::1", 8000)


@pytest.mark.parametrize("address", ["", "host", "host:", ":8000", "host:http"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(LinkError, match="host:port"):
        split_address(address)


DAY = 86400


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (DAY, "it is 24 hours behind it"),
        (-DAY, "it is 24 hours ahead of it"),
        (-3600, "it is 60 minutes ahead of it"),
        (20 * 60, "it is 20 minutes behind it"),
    ],
)
def test_a_wrong_clock_is_named_with_both_times(certificates, clock, said):
    with answering(certificates, clock=clock) as port, pytest.raises(ClockError) as caught:
        reach_link(f"localhost:{port}", certificates.ca)
    text = str(caught.value)
    assert text.startswith(
        f"Expected the clock of this machine to agree with the link's, but {said}"
    )
    assert "best by NTP" in text


@pytest.mark.parametrize("clock", [200, 2, -2])
def test_clocks_that_flower_lets_pass_are_no_matter(certificates, clock):
    with answering(certificates, clock=clock) as port:
        reach_link(f"localhost:{port}", certificates.ca)


def test_a_certificate_that_is_not_valid_yet_or_any_more_points_to_the_clock(tmp_path, monkeypatch):
    for start in (timedelta(days=9), timedelta(days=-9)):
        monkeypatch.setattr(pki, "datetime", Shifted(start))
        odd = make_certificates(tmp_path / str(start.days), ["localhost"], days=1)
        monkeypatch.undo()
        with (
            answering(odd) as port,
            pytest.raises(ClockError, match="is the clock of this machine right"),
        ):
            reach_link(f"localhost:{port}", odd.ca)


def test_a_clock_a_day_behind_does_not_find_the_certificates_too_young(tmp_path):
    """It passes TLS, so that it can be told what is wrong."""
    made = make_certificates(tmp_path / "made", ["localhost"])
    check_authority(made.ca, datetime.now(UTC) - timedelta(days=1))


class Shifted:
    """A calendar that is off."""

    def __init__(self, by):
        self.by = by

    def now(self, zone):
        return datetime.now(zone) + self.by


def test_no_time_out_goes_by_the_clock_on_the_wall():
    """A clock that is set while a run goes on ends no wait, and makes none endless."""
    for room in ("flower", "deploy", "engines", "federation"):
        for file in (Path(fedbridge.__file__).parent / room).rglob("*.py"):
            assert "time.time(" not in file.read_text(), file
