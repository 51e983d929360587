"""Keys and certificates of a real federation: one key pair for each site, one authority for the coordinator."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polyfed.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True)
class NodeKey:
    """The two files of a site's key pair."""

    private: Path
    public: Path


@dataclass(frozen=True)
class Authority:
    """The files of a certificate authority and of the server certificate that it signed."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """What sites are given (`--ca`)."""
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server_certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


@dataclass(frozen=True)
class PublicKey:
    """A site's public key: its line of text, and the bytes by which Flower knows it."""

    line: str
    encoded: bytes


def checked_name(name: str) -> str:
    """A site's name, if it can be one."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"'{name}' cannot name a site; use lower-case letters and digits with - or _ between them, at most 63"
        )
    return name


def new_node_key(folder: Path, name: str) -> NodeKey:
    """Make a site's key pair (ECDSA P-384, OpenSSH form): NAME.key, for the site alone, and NAME.pub."""
    files = NodeKey(folder / f"{checked_name(name)}.key", folder / f"{name}.pub")
    _refuse_to_overwrite(files.private, files.public)
    key = _new_key()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(files.private, private, secret=True)
    _write(files.public, public + b" " + name.encode() + b"\n", secret=False)
    return files


def new_authority(
    folder: Path, hosts: Sequence[str], *, days: int = SERVER_DAYS, now: datetime.datetime | None = None
) -> Authority:
    """Make a certificate authority of one's own, and a server certificate for the addresses `hosts`.

    The loopback addresses are always in the certificate. `now` is when it begins to be valid.
    """
    names = _names(hosts)
    files = Authority(folder)
    _refuse_to_overwrite(files.certificate, files.key, files.server_certificate, files.server_key)
    begins = now or _now()
    key = _new_key()
    subject = _subject("polyfed authority")
    usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    certificate = (
        _builder(subject, subject, key, begins, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(key, hashes.SHA384())
    )
    _write(files.key, _pem_of_key(key), secret=True)
    _write(files.certificate, _pem(certificate), secret=False)
    _sign_server(files, key, certificate, names, begins, days)
    return files


def renew_server(folder: Path, hosts: Sequence[str], *, days: int = SERVER_DAYS) -> Authority:
    """A new server certificate by the authority in `folder`; sites need nothing new. The old one is replaced."""

    names = _names(hosts)
    files = Authority(folder)
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no certificate authority to sign with: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(f"{files.key} is not the key of {files.certificate}")
    for file in (files.server_certificate, files.server_key):
        file.unlink(missing_ok=True)
    _sign_server(files, key, certificate, names, _now(), days)
    return files


def internal_authority(folder: Path) -> Authority:
    """For processes on one machine that know each other by it: the server's certificate is a new one every time."""
    if Authority(folder).certificate.exists():
        return renew_server(folder, [], days=AUTHORITY_DAYS)
    return new_authority(folder, [], days=AUTHORITY_DAYS)


def read_public_key(file: Path) -> PublicKey:
    """A site's public key from its file."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the public key {file} cannot be read: {error}") from None
    if "PRIVATE KEY" in text:
        raise InputError(f"{file} is a private key, which never leaves its site; the public one ends in .pub")
    return public_key(text, str(file))


def public_key(line: str, source: str = "the key") -> PublicKey:
    """A site's public key from its line of text."""

    try:
        key = serialization.load_ssh_public_key(line.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{source} holds no public key in OpenSSH form; `polyfed keys new site NAME` makes one"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InputError(f"{source} holds a public key of another kind; sites use ECDSA P-384 keys")
    return PublicKey(_line(key), _encoded(key))


def public_key_of(file: Path) -> PublicKey:
    """The public half of the private key in a file; refuses keys that others may read."""

    try:
        mode = file.stat().st_mode & 0o777
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"the key {file} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise InputError(
            f"the key {file} can be read by others (mode {mode:03o}); make it yours alone: chmod 600 {file}"
        )
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"{file} holds no private key in OpenSSH form without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InputError(f"{file} holds a key of another kind; sites use ECDSA P-384 keys")
    return PublicKey(_line(key.public_key()), _encoded(key.public_key()))


def _line(key: ec.EllipticCurvePublicKey) -> str:
    """One form for one key, however it was written down."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _encoded(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower registers it and sends it along."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _sign_server(
    files: Authority,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    names: list[x509.GeneralName],
    begins: datetime.datetime,
    days: int,
) -> None:

    own = _new_key()
    certificate = (
        _builder(_subject("polyfed coordinator"), authority.subject, own, begins, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write(files.server_key, _pem_of_key(own), secret=True)
    _write(files.server_certificate, _pem(certificate), secret=False)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # clocks of two machines differ by a little
        .not_valid_before(begins - datetime.timedelta(minutes=5))
        .not_valid_after(begins + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """What a certificate is for: every host once, the loopback addresses always."""

    names: list[x509.GeneralName] = []
    for host in dict.fromkeys((*hosts, *LOOPBACK)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not HOST.fullmatch(host):
                raise InputError(
                    f"'{host}' is no host; give an address such as 192.0.2.7 or a name such as fl.example.org"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _subject(name: str) -> x509.Name:

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _refuse_to_overwrite(*files: Path) -> None:
    for file in files:
        if file.exists():
            raise InputError(f"{file} exists and is kept; choose another folder, or move it away first")


def _write(file: Path, content: bytes, *, secret: bool) -> None:
    """A new file, from its first byte on readable only by those who may."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from None
