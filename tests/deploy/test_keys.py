"""Keys and certificates: in the format that Flower reads, readable by their owners only, and never overwritten."""

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
from polyfed.deploy.certificates import certificate_hosts, create_authority, renew_server
from polyfed.errors import InputError


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_flower_can_read_a_site_key(tmp_path: Path) -> None:
    pair = keys.create_site_key(tmp_path, "north")
    private = serialization.load_ssh_private_key(pair.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and uses_nist_ec_curve(private.public_key())
    assert mode(pair.private) == 0o600 and mode(pair.public) == 0o644
    assert pair.public.read_text().endswith(" north\n")
    pem = public_key_to_bytes(private.public_key())
    assert keys.read_public_key(pair.public).pem == keys.public_key_of(pair.private).pem == pem
    assert keys.read_public_key(pair.public).openssh == keys.public_key_of(pair.private).openssh


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    pair = keys.create_site_key(tmp_path, "north")
    before = pair.private.read_bytes()
    with pytest.raises(InputError, match=r"north[.]key exists and is not overwritten"):
        keys.create_site_key(tmp_path, "north")
    pair.private.unlink()
    with pytest.raises(InputError, match=r"north[.]pub exists and is not overwritten"):
        keys.create_site_key(tmp_path, "north")
    assert not pair.private.exists()
    pair.private.write_bytes(before)

    files = create_authority(tmp_path, [])
    before = files.authority_key.read_bytes()
    with pytest.raises(InputError, match=r"ca[.]crt exists and is not overwritten"):
        create_authority(tmp_path, [])
    assert files.authority_key.read_bytes() == before


@pytest.mark.parametrize("name", ["", "North", "a b", "../a", "-a", "a-", "a/b", "a" * 64, "ä"])
def test_invalid_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot name a site"):
        keys.create_site_key(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_keys_that_other_users_can_read_are_refused(tmp_path: Path) -> None:
    pair = keys.create_site_key(tmp_path, "north")
    pair.private.chmod(0o640)
    with pytest.raises(InputError, match=r"can be read by other users \(mode 640\)"):
        keys.public_key_of(pair.private)


def test_errors_name_the_file(tmp_path: Path) -> None:
    pair = keys.create_site_key(tmp_path, "north")
    with pytest.raises(InputError, match="is a private key, which must stay at its site"):
        keys.read_public_key(pair.private)
    with pytest.raises(InputError, match="cannot be read"):
        keys.read_public_key(tmp_path / "missing.pub")
    other = tmp_path / "other.pub"
    other.write_text("ssh-rsa nothing")
    with pytest.raises(InputError, match="no public key in OpenSSH format"):
        keys.read_public_key(other)
    edwards = ed25519.Ed25519PrivateKey.generate().public_key()
    other.write_bytes(edwards.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    with pytest.raises(InputError, match="sites use ECDSA P-384 keys"):
        keys.read_public_key(other)
    other.write_text("nothing")
    other.chmod(0o600)
    with pytest.raises(InputError, match="holds no private key in OpenSSH format"):
        keys.public_key_of(other)


def test_certificates_are_for_hosts_and_loopback(tmp_path: Path) -> None:
    files = create_authority(tmp_path / "home", ["192.0.2.7", "fl.example.org", "2001:db8::1"])
    assert certificate_hosts(files.server) == {
        *("192.0.2.7", "fl.example.org", "2001:db8::1"),
        *("127.0.0.1", "localhost", "::1"),
    }
    assert mode(files.authority_key) == mode(files.server_key) == 0o600
    assert mode(tmp_path / "home") == 0o700
    server = x509.load_pem_x509_certificate(files.server.read_bytes())
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    server.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    left = server.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=364) < left <= datetime.timedelta(days=365)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)


@pytest.mark.parametrize("host", ["", "a b", "http://x", "x:80", "-x.org", "*"])
def test_invalid_hosts(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="is not a host"):
        create_authority(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_renewal_by_the_same_authority(tmp_path: Path) -> None:
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    files = create_authority(tmp_path, ["192.0.2.7"], days=30, now=long_ago)
    old = x509.load_pem_x509_certificate(files.server.read_bytes())
    assert old.not_valid_after_utc == long_ago + datetime.timedelta(days=30)
    renew_server(tmp_path, ["192.0.2.8"])
    fresh = x509.load_pem_x509_certificate(files.server.read_bytes())
    fresh.verify_directly_issued_by(x509.load_pem_x509_certificate(files.authority.read_bytes()))
    assert fresh.not_valid_after_utc > datetime.datetime.now(datetime.UTC)
    assert "192.0.2.8" in certificate_hosts(files.server) and mode(files.server_key) == 0o600


def test_renewal_needs_the_authority(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no certificate authority to sign with"):
        renew_server(tmp_path, [])
    files, other = (
        create_authority(tmp_path / "one", []),
        create_authority(tmp_path / "two", []),
    )
    other.authority_key.replace(files.authority_key)
    before = files.server.read_bytes()
    with pytest.raises(InputError, match=r"ca.key is not the key of .*ca.crt"):
        renew_server(tmp_path / "one", [])
    assert files.server.read_bytes() == before
