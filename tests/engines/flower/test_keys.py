"""Node keys in the formats that Flower reads, and what is wrong with one that it could not use."""

import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
)
from flwr.cli.supernode.register import try_load_public_key

from fedbridge.engines.flower.keys import (
    KeyFileError,
    check_node_key,
    check_private_key,
    make_node_key,
    node_key,
    read_public_key,
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
