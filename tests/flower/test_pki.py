"""Keys and certificates that Flower and TLS accept, and a sentence about each that is refused."""

import socket
import ssl
import stat
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
)
from flwr.cli.supernode.register import try_load_public_key

from fedbridge.flower.pki import (
    CertificateError,
    Certificates,
    KeyFileError,
    check_authority,
    check_certificates,
    check_node_key,
    check_private_key,
    make_certificates,
    make_node_key,
    node_key,
    read_authorities,
    read_public_key,
    renew_authority,
    renew_server_certificate,
    signer,
)


@pytest.fixture
def key(tmp_path):
    return make_node_key(tmp_path / "keys", "Hôpital A")


def test_a_node_gets_an_ecdsa_key_on_p384_in_openssh_format(key):
    secret = load_ssh_private_key(key.private.read_bytes(), password=None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    assert secret.curve.name == "secp384r1"
    assert key.private.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert key.public.read_bytes().startswith(b"ecdsa-sha2-nistp384 ")


def test_flower_reads_the_public_key_as_we_do(key):
    assert try_load_public_key(key.public) == read_public_key(key.public)


def test_only_the_owner_can_read_the_private_key(key):
    assert stat.S_IMODE(key.private.stat().st_mode) == 0o600


def test_both_halves_belong_together(key):
    check_node_key(key)
    assert check_private_key(key.private) == read_public_key(key.public)


def test_each_site_has_a_key_of_its_own(tmp_path):
    a, b = make_node_key(tmp_path, "A"), make_node_key(tmp_path, "B")
    assert read_public_key(a.public) != read_public_key(b.public)
    assert node_key(tmp_path, "A") == a


def test_a_key_is_never_replaced(key):
    with pytest.raises(KeyFileError, match="keep it, or move"):
        make_node_key(key.private.parent, "Hôpital A")


def test_a_public_key_of_somebody_else_is_noticed(tmp_path, key):
    key.public.write_bytes(make_node_key(tmp_path, "B").public.read_bytes())
    with pytest.raises(KeyFileError, match="but it is another key"):
        check_node_key(key)


def test_a_private_key_that_others_can_read_is_noticed(key):
    key.private.chmod(0o640)
    with pytest.raises(KeyFileError, match="has mode 640: run chmod 600"):
        check_private_key(key.private)


@pytest.mark.parametrize("read", [check_private_key, read_public_key])
def test_a_missing_key_is_noticed(tmp_path, read):
    with pytest.raises(KeyFileError, match=r"absent.* No such file or directory"):
        read(tmp_path / "absent")


@pytest.mark.parametrize("read", [check_private_key, read_public_key])
def test_a_file_that_is_no_key_is_noticed(tmp_path, read):
    file = tmp_path / "letter"
    file.write_text("Dear site,")
    with pytest.raises(KeyFileError, match=r"it is not a .* key in OpenSSH format"):
        read(file)


def test_a_key_of_another_kind_is_noticed(tmp_path):
    file = tmp_path / "ed25519"
    secret = ed25519.Ed25519PrivateKey.generate()
    file.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(KeyFileError, match="Expected an ECDSA key"):
        check_private_key(file)


HOSTS = ["link.example.org", "127.0.0.1", "::1"]


@pytest.fixture
def files(tmp_path):
    return make_certificates(tmp_path / "link", HOSTS)


@contextmanager
def served(files: Certificates):
    """The port of a server that shows its certificate to one client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            # What the client has to complain of is the client's test.
            with connection, suppress(ssl.SSLError, ConnectionError):
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=greet)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def connect(port: int, ca, host: str) -> None:
    """Check a server's certificate as strictly as the newest Python does."""
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_with_the_authoritys_certificate_accepts_the_server(files, host):
    check_certificates(files.folder, host)
    with served(files) as port:
        connect(port, files.ca, host)


def test_a_client_refuses_the_server_under_another_name(files):
    with served(files) as port, pytest.raises(ssl.SSLCertVerificationError, match="Hostname"):
        connect(port, files.ca, "evil.example.org")


def test_a_client_refuses_a_server_of_another_authority(files, tmp_path):
    other = make_certificates(tmp_path / "other", HOSTS)
    with served(other) as port, pytest.raises(ssl.SSLCertVerificationError):
        connect(port, files.ca, HOSTS[0])


def test_only_the_owner_can_read_private_keys(files):
    for key in (files.ca_key, files.server_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_an_authority_is_never_replaced(files):
    with pytest.raises(CertificateError, match="but there is one"):
        make_certificates(files.folder, HOSTS)


def test_a_renewed_server_is_accepted_by_the_old_authority(files):
    ca, old = files.ca.read_bytes(), files.server.read_bytes()
    renew_server_certificate(files.folder, ["new.example.org"], days=2)
    assert files.ca.read_bytes() == ca
    assert files.server.read_bytes() != old
    check_certificates(files.folder, "new.example.org")
    with served(files) as port:
        connect(port, files.ca, "new.example.org")


class TestANewAuthority:
    """Old and new are trusted side by side, so that no site is locked out on the way."""

    @pytest.fixture
    def old(self, files):
        """The ``ca.crt`` that sites have had so far."""
        kept = files.folder / "old.crt"
        kept.write_bytes(files.ca.read_bytes())
        return kept

    def accepted(self, files, ca):
        with served(files) as port:
            try:
                connect(port, ca, HOSTS[0])
            except ssl.SSLCertVerificationError:
                return False
        return True

    def test_first_changes_nothing_for_sites_with_the_old_or_the_new_file(self, files, old):
        renew_authority(files.folder, HOSTS)
        check_certificates(files.folder, HOSTS[0])
        assert len(read_authorities(files.ca)) == 2
        assert self.accepted(files, old)
        assert self.accepted(files, files.ca)
        assert signer(files) == read_authorities(old)[0]

    def test_then_signs_for_the_link(self, files, old):
        renew_authority(files.folder, HOSTS)
        renew_server_certificate(files.folder, HOSTS)
        check_certificates(files.folder, HOSTS[0])
        assert self.accepted(files, files.ca)
        assert not self.accepted(files, old)
        assert signer(files) == read_authorities(files.ca)[0]

    def test_outlives_the_old_one(self, tmp_path):
        files = make_certificates(tmp_path / "link", HOSTS, days=20)
        renew_authority(files.folder, HOSTS, days=300)
        renew_server_certificate(files.folder, HOSTS, days=300)
        later = datetime.now(UTC) + timedelta(days=200)
        check_certificates(files.folder, HOSTS[0], now=later)

    def test_lets_the_old_one_go_once_it_has_ended(self, tmp_path):
        files = make_certificates(tmp_path / "link", HOSTS, days=1e-5)
        time.sleep(1)
        renew_authority(files.folder, HOSTS)
        assert len(read_authorities(files.ca)) == 1

    def test_the_end_of_the_one_that_signed_counts_in_between(self, tmp_path):
        files = make_certificates(tmp_path / "link", HOSTS, days=20)
        renew_authority(files.folder, HOSTS, days=300)
        with pytest.raises(CertificateError, match=r"ca\.crt, but it expired"):
            check_certificates(files.folder, HOSTS[0], now=datetime.now(UTC) + timedelta(days=21))

    def test_its_key_is_for_its_owner_only(self, files):
        renew_authority(files.folder, HOSTS)
        assert stat.S_IMODE(files.ca_key.stat().st_mode) == 0o600

    def test_a_key_of_no_authority_signs_nothing(self, files, tmp_path):
        make_certificates(tmp_path / "other", HOSTS).ca_key.replace(files.ca_key)
        with pytest.raises(CertificateError, match="but got another key"):
            renew_server_certificate(files.folder, HOSTS)


def test_an_authoritys_key_that_others_can_read_is_noticed(files):
    files.ca_key.chmod(0o640)
    with pytest.raises(KeyFileError, match=r"ca\.key has mode 640"):
        check_certificates(files.folder, HOSTS[0])


def test_an_authoritys_key_may_be_kept_elsewhere(files):
    files.ca_key.unlink()
    check_certificates(files.folder, HOSTS[0])


def test_another_host_is_noticed(files):
    expected = r"to be for 10\.0\.0\.1, but it is for link\.example\.org, 127\.0\.0\.1, ::1: renew"
    with pytest.raises(CertificateError, match=expected):
        check_certificates(files.folder, "10.0.0.1")


def test_validity_is_as_long_as_asked_for(tmp_path):
    folder = make_certificates(tmp_path, HOSTS, days=30).folder
    check_certificates(folder, HOSTS[0], now=datetime.now(UTC) + timedelta(days=29))
    with pytest.raises(CertificateError, match=r"ca\.crt, but it expired on 20..-..-..: make"):
        check_certificates(folder, HOSTS[0], now=datetime.now(UTC) + timedelta(days=31))


def test_an_expired_server_under_a_valid_authority_is_noticed(files):
    renew_server_certificate(files.folder, HOSTS, days=1)
    with pytest.raises(CertificateError, match=r"server\.pem, but it expired"):
        check_certificates(files.folder, HOSTS[0], now=datetime.now(UTC) + timedelta(days=2))


def test_a_clock_that_is_behind_is_noticed(files):
    with pytest.raises(CertificateError, match="check the clock"):
        check_certificates(files.folder, HOSTS[0], now=datetime.now(UTC) - timedelta(days=3))


def test_a_key_of_another_certificate_is_noticed(files, tmp_path):
    other = make_certificates(tmp_path / "other", HOSTS)
    other.server_key.replace(files.server_key)
    with pytest.raises(CertificateError, match="but got another key"):
        check_certificates(files.folder, HOSTS[0])


def test_an_authority_that_did_not_sign_is_noticed(files, tmp_path):
    other = make_certificates(tmp_path / "other", HOSTS)
    other.ca.replace(files.ca)
    with pytest.raises(CertificateError, match="but another authority signed it"):
        check_certificates(files.folder, HOSTS[0])


def test_a_server_key_that_others_can_read_is_noticed(files):
    files.server_key.chmod(0o644)
    with pytest.raises(KeyFileError, match="has mode 644"):
        check_certificates(files.folder, HOSTS[0])


@pytest.mark.parametrize("name", ["ca.crt", "server.pem", "server.key"])
def test_a_missing_file_is_noticed(files, name):
    (files.folder / name).unlink()
    with pytest.raises(CertificateError, match=rf"{name}.*No such file or directory"):
        check_certificates(files.folder, HOSTS[0])


@pytest.mark.parametrize("name", ["ca.crt", "server.pem", "server.key"])
def test_a_damaged_file_is_noticed(files, name):
    file = files.folder / name
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(CertificateError, match=rf"{name}, but could not read it: it is not a"):
        check_certificates(files.folder, HOSTS[0])


def test_a_site_that_got_the_wrong_certificate_is_told_so(files):
    check_authority(files.ca)
    with pytest.raises(CertificateError, match=r"use the coordinator's ca\.crt"):
        check_authority(files.server)


@pytest.mark.parametrize("host", ["", "https://link", "link:8000", "a b", "-a.org", "ümlaut.org"])
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(CertificateError, match="Expected a host name"):
        make_certificates(tmp_path, [host])
    assert not (tmp_path / "ca.crt").exists()


def test_a_server_needs_a_name(tmp_path):
    with pytest.raises(CertificateError, match="at least one host name"):
        make_certificates(tmp_path, [])
    assert not (tmp_path / "ca.crt").exists()
