"""Keys and certificates: in the form that Flower reads, for their owners only, and never overwritten."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from tests.deploy.flower_names import public_key_to_bytes, uses_nist_ec_curve

from polyfed.deploy import keys
from polyfed.deploy.allowlist import names_in
from polyfed.errors import InputError


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_site_key_is_what_flower_reads(tmp_path: Path) -> None:
    made = keys.new_node_key(tmp_path, "north")
    private = serialization.load_ssh_private_key(made.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and uses_nist_ec_curve(private.public_key())
    assert mode(made.private) == 0o600 and mode(made.public) == 0o644
    assert made.public.read_text().endswith(" north\n")
    encoded = public_key_to_bytes(private.public_key())
    assert keys.read_public_key(made.public).encoded == keys.public_key_of(made.private).encoded == encoded
    assert keys.read_public_key(made.public).line == keys.public_key_of(made.private).line


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    made = keys.new_node_key(tmp_path, "north")
    before = made.private.read_bytes()
    with pytest.raises(InputError, match=r"north[.]key exists and is kept"):
        keys.new_node_key(tmp_path, "north")
    made.private.unlink()
    with pytest.raises(InputError, match=r"north[.]pub exists and is kept"):
        keys.new_node_key(tmp_path, "north")
    assert not made.private.exists()
    made.private.write_bytes(before)

    authority = keys.new_authority(tmp_path, [])
    before = authority.key.read_bytes()
    with pytest.raises(InputError, match=r"ca[.]crt exists and is kept"):
        keys.new_authority(tmp_path, [])
    assert authority.key.read_bytes() == before


@pytest.mark.parametrize("name", ["", "North", "a b", "../a", "-a", "a-", "a/b", "a" * 64, "ä"])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot name a site"):
        keys.new_node_key(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    made = keys.new_node_key(tmp_path, "north")
    made.private.chmod(0o640)
    with pytest.raises(InputError, match=r"can be read by others \(mode 640\)"):
        keys.public_key_of(made.private)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    made = keys.new_node_key(tmp_path, "north")
    with pytest.raises(InputError, match="is a private key, which never leaves its site"):
        keys.read_public_key(made.private)
    with pytest.raises(InputError, match="cannot be read"):
        keys.read_public_key(tmp_path / "missing.pub")
    other = tmp_path / "other.pub"
    other.write_text("ssh-rsa nothing")
    with pytest.raises(InputError, match="no public key in OpenSSH form"):
        keys.read_public_key(other)
    edwards = ed25519.Ed25519PrivateKey.generate().public_key()
    other.write_bytes(edwards.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    with pytest.raises(InputError, match="sites use ECDSA P-384 keys"):
        keys.read_public_key(other)
    other.write_text("nothing")
    other.chmod(0o600)
    with pytest.raises(InputError, match="holds no private key in OpenSSH form"):
        keys.public_key_of(other)


def test_an_authority_signs_for_hosts_and_loopback(tmp_path: Path) -> None:
    made = keys.new_authority(tmp_path / "home", ["192.0.2.7", "fl.example.org", "2001:db8::1"])
    assert names_in(made.server_certificate) == {
        *("192.0.2.7", "fl.example.org", "2001:db8::1"),
        *("127.0.0.1", "localhost", "::1"),
    }
    assert mode(made.key) == mode(made.server_key) == 0o600
    assert mode(tmp_path / "home") == 0o700
    server = x509.load_pem_x509_certificate(made.server_certificate.read_bytes())
    authority = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    server.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    left = server.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=364) < left <= datetime.timedelta(days=365)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_certificate, made.server_key)


@pytest.mark.parametrize("host", ["", "a b", "http://x", "x:80", "-x.org", "*"])
def test_hosts_that_cannot_be(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="is no host"):
        keys.new_authority(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_a_new_certificate_by_the_same_authority(tmp_path: Path) -> None:
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = keys.new_authority(tmp_path, ["192.0.2.7"], days=30, now=long_ago)
    old = x509.load_pem_x509_certificate(made.server_certificate.read_bytes())
    assert old.not_valid_after_utc == long_ago + datetime.timedelta(days=30)
    keys.renew_server(tmp_path, ["192.0.2.8"])
    fresh = x509.load_pem_x509_certificate(made.server_certificate.read_bytes())
    fresh.verify_directly_issued_by(x509.load_pem_x509_certificate(made.certificate.read_bytes()))
    assert fresh.not_valid_after_utc > datetime.datetime.now(datetime.UTC)
    assert "192.0.2.8" in names_in(made.server_certificate) and mode(made.server_key) == 0o600


def test_nothing_is_renewed_without_its_authority(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no certificate authority to sign with"):
        keys.renew_server(tmp_path, [])
    made, other = keys.new_authority(tmp_path / "one", []), keys.new_authority(tmp_path / "two", [])
    other.key.replace(made.key)
    before = made.server_certificate.read_bytes()
    with pytest.raises(InputError, match=r"ca.key is not the key of .*ca.crt"):
        keys.renew_server(tmp_path / "one", [])
    assert made.server_certificate.read_bytes() == before
