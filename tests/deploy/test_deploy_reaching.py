"""Is there a link, and is it the right one?"""

import pytest
from links import answering

from fedbridge.deploy.checking import LinkError, reach_link, split_address
from fedbridge.flower.pki import make_certificates


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
