"""What passes a coordinator's gateway: the requests that a site's SuperNode makes, from keys that are admitted.

A request passes only if its path is, byte for byte, one of those below; there is nothing to decode, resolve or
normalise, and so nothing to trick.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from polyfed.deploy.flower_protocol import CONTENT_TYPE, FLEET, PUBLIC_KEY_HEADER, REGISTRATION_PATHS, SITE_PATHS
from polyfed.deploy.site_registry import Standing
from polyfed.errors import InputError

STANDING = b"/v1/polyfed/standing"
LARGEST_BODY = 64 << 20  # Flower cuts payloads into pieces of 5 MiB

Scope = dict[str, Any]


class RefusedError(Exception):
    """A request that does not pass: the status and the sentence that it is answered with."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Rules:
    """What passes. `standing` says what holds for a public key; None: sites without keys (`--insecure`)."""

    standing: Callable[[bytes], tuple[Standing, str]] | None
    hosts: frozenset[str] | None = None
    largest: int = LARGEST_BODY

    def check(self, scope: Scope) -> None:
        """Raise unless a request may pass, by its line and its head alone."""
        path, headers = scope["raw_path"], dict(scope["headers"])
        if path not in SITE_PATHS and not (self.standing is None and path in REGISTRATION_PATHS):
            raise RefusedError(403, f"{shown(path)} is not open to the outside; only the fleet interface is")
        if scope["method"] != "POST" or scope["query_string"]:
            raise RefusedError(403, f"{shown(path)} takes nothing but POST without a query")
        self.check_host(headers)
        if b"upgrade" in headers or headers.get(b"content-type") != CONTENT_TYPE:
            raise RefusedError(403, f"{shown(path)} takes nothing but {CONTENT_TYPE.decode()}")
        if len([name for name, _ in scope["headers"] if name == PUBLIC_KEY_HEADER]) > 1:
            raise RefusedError(403, "a request with two public keys")
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not length.isdigit():
            raise RefusedError(411, "a request must say how long it is")
        if int(length) > self.largest:
            raise RefusedError(413, f"a request of {int(length)} bytes is longer than the {self.largest} allowed")
        if self.standing is not None:
            standing, name = self.asked(headers)
            if standing != "admitted":
                # with 401 a SuperNode that is under way ends; one that begins tells the words of a 400
                raise RefusedError(400 if path == FLEET + b"activate-node" else 401, sentence(standing, name))

    def check_host(self, headers: dict[bytes, bytes]) -> None:
        if self.hosts is not None and host_of(headers.get(b"host", b"")) not in self.hosts:
            raise RefusedError(403, f"{shown(headers.get(b'host', b''))} is not a name of this coordinator")

    def asked(self, headers: dict[bytes, bytes]) -> tuple[Standing, str]:
        """What holds for the key that a request names."""
        try:
            key = base64.b64decode(headers.get(PUBLIC_KEY_HEADER, b""), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        return self.standing(key) if self.standing is not None else ("admitted", "")


def sentence(standing: Standing, name: str) -> str:
    """Why a key does not get in."""
    if standing == "revoked":
        return f"the key of site '{name}' has been revoked by the coordinator"
    return "this key is not known to the coordinator; send it your .pub file, for `polyfed sites admit NAME FILE`"


def shown(text: bytes) -> str:
    """Anything that came from outside, in one short line."""
    return ascii(text[:80].decode("latin-1"))


def host_of(header: bytes) -> str:
    """The host in a Host header, without port and brackets."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def names_in(certificate: Path) -> frozenset[str]:
    """The hosts that a certificate is for."""
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise InputError(f"{certificate} is no certificate that names its hosts: {error}") from None
    texts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return frozenset(text.lower() for text in texts)
