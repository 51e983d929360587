"""Key pairs of sites (ECDSA P-384, OpenSSH format)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polyfed.deploy.private_files import check_absent, write_new
from polyfed.errors import InputError

SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class KeyPair:
    """The two files of a site's key pair."""

    private: Path
    public: Path


@dataclass(frozen=True)
class PublicKey:
    """A site's public key in two formats: a line in OpenSSH format, and PEM, which Flower registers and sends."""

    openssh: str
    pem: bytes


def check_site_name(name: str) -> str:
    """Return a site's name. Raise `InputError` if it is not a valid one."""
    if not SITE_NAME.fullmatch(name):
        raise InputError(
            f"'{name}' cannot name a site; use lower-case letters and digits with - or _ between them, at most 63"
        )
    return name


def create_site_key(folder: Path, name: str) -> KeyPair:
    """Create a site's key pair: NAME.key, which stays at the site, and NAME.pub."""
    files = KeyPair(folder / f"{check_site_name(name)}.key", folder / f"{name}.pub")
    check_absent(files.private, files.public)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_new(files.private, private, secret=True)
    write_new(files.public, public + b" " + name.encode() + b"\n", secret=False)
    return files


def read_public_key(file: Path) -> PublicKey:
    """Read a site's public key from its .pub file."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the public key {file} cannot be read: {error}") from None
    if "PRIVATE KEY" in text:
        raise InputError(f"{file} is a private key, which must stay at its site; the public one ends in .pub")
    return parse_public_key(text, str(file))


def parse_public_key(line: str, source: str = "the key") -> PublicKey:
    """Parse a public key in OpenSSH format. `source` names it in error messages."""
    try:
        key = serialization.load_ssh_public_key(line.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{source} holds no public key in OpenSSH format; create one with `polyfed keys new site NAME`"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InputError(f"{source} holds a public key of another type; sites use ECDSA P-384 keys")
    return _public_key(key)


def public_key_of(file: Path) -> PublicKey:
    """Return the public key of a private key file. Raise `InputError` if other users can read the file."""
    try:
        mode = file.stat().st_mode & 0o777
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"the key {file} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise InputError(f"the key {file} can be read by other users (mode {mode:03o}); run: chmod 600 {file}")
    try:
        key = serialization.load_ssh_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"{file} holds no private key in OpenSSH format without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise InputError(f"{file} holds a key of another type; sites use ECDSA P-384 keys")
    return _public_key(key.public_key())


def _public_key(key: ec.EllipticCurvePublicKey) -> PublicKey:
    """Return the canonical form of a key, so that equal keys compare equal however they were written."""
    openssh = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(openssh.decode(), pem)
