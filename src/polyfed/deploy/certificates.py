"""Certificates of a coordinator: a certificate authority, and the server certificate that it signs."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polyfed.deploy.private_files import check_absent, write_new
from polyfed.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
KEY_USAGES = (
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


@dataclass(frozen=True)
class CertificateFolder:
    """The files of a certificate authority and of the server certificate that it signed."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Certificate of the authority, which every site needs (`--ca`)."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """Certificate of the server."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


def create_authority(
    folder: Path, hosts: Sequence[str], *, days: int = SERVER_DAYS, now: datetime.datetime | None = None
) -> CertificateFolder:
    """Create a certificate authority, and a server certificate for `hosts` and the loopback addresses.

    `now` is the time from which they are valid.
    """
    names = _subject_names(hosts)
    files = CertificateFolder(folder)
    check_absent(files.authority, files.authority_key, files.server, files.server_key)
    begin = now or _now()
    key = _new_key()
    subject = _subject("polyfed authority")
    usage = dict.fromkeys(KEY_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    certificate = (
        _builder(subject, subject, key, begin, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(key, hashes.SHA384())
    )
    write_new(files.authority_key, _key_pem(key), secret=True)
    write_new(files.authority, _certificate_pem(certificate), secret=False)
    _sign_server(files, key, certificate, names, begin, days)
    return files


def renew_server(folder: Path, hosts: Sequence[str], *, days: int = SERVER_DAYS) -> CertificateFolder:
    """Replace the server certificate by a new one of the same authority. Sites need no new file."""
    names = _subject_names(hosts)
    files = CertificateFolder(folder)
    try:
        certificate = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key = serialization.load_pem_private_key(files.authority_key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no certificate authority to sign with: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(f"{files.authority_key} is not the key of {files.authority}")
    for file in (files.server, files.server_key):
        file.unlink(missing_ok=True)
    _sign_server(files, key, certificate, names, _now(), days)
    return files


def loopback_certificates(folder: Path) -> CertificateFolder:
    """Return certificates for processes of one machine. The server certificate is a new one at every call."""
    if CertificateFolder(folder).authority.exists():
        return renew_server(folder, [], days=AUTHORITY_DAYS)
    return create_authority(folder, [], days=AUTHORITY_DAYS)


def certificate_hosts(certificate: Path) -> frozenset[str]:
    """Return the hosts that a certificate is valid for."""
    try:
        content = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = content.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise InputError(f"{certificate} is not a certificate that names its hosts: {error}") from None
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return frozenset(host.lower() for host in hosts)


def _sign_server(
    files: CertificateFolder,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    names: list[x509.GeneralName],
    begin: datetime.datetime,
    days: int,
) -> None:
    key = _new_key()
    certificate = (
        _builder(_subject("polyfed coordinator"), authority.subject, key, begin, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_new(files.server_key, _key_pem(key), secret=True)
    write_new(files.server, _certificate_pem(certificate), secret=False)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # tolerates clocks that differ by a little
        .not_valid_before(begin - datetime.timedelta(minutes=5))
        .not_valid_after(begin + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return the names of a certificate: each host once, and the loopback addresses."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys((*hosts, *LOOPBACK)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not HOST.fullmatch(host):
                raise InputError(
                    f"'{host}' is not a host; give an address such as 192.0.2.7 or a name such as fl.example.org"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
