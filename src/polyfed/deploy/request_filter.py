"""Admission rules of a coordinator's gateway: it forwards the requests of SuperNodes whose keys are admitted.

The path of a request must equal, byte for byte, one of an allowlist. Nothing is decoded, resolved or normalised, so
there is no encoding that could get around the check.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyfed.deploy.flower_protocol import (
    ACTIVATION,
    CONTENT_TYPE,
    PUBLIC_KEY_HEADER,
    REGISTRATION_PATHS,
    SIGNATURE_HEADER,
    SITE_PATHS,
    TIMESTAMP_HEADER,
)
from polyfed.deploy.request_signature import is_signed
from polyfed.deploy.site_registry import SiteStatus

STATUS_PATH = b"/v1/polyfed/standing"  # at which a site asks for the status of its key
MAX_BODY_BYTES = 64 << 20  # Flower cuts payloads into pieces of 5 MiB

Scope = dict[str, Any]
StatusOfKey = Callable[[bytes], tuple[SiteStatus, str]]


class RefusedError(Exception):
    """A request that is not forwarded: status and text of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class AdmissionRules:
    """The checks of every request.

    `status_of_key` returns the status and the site name of a public key. It is None for sites without keys
    (`--insecure`), which register themselves; the coordinator registers sites that have keys.
    """

    status_of_key: StatusOfKey | None
    hosts: frozenset[str] | None = None
    max_body: int = MAX_BODY_BYTES

    def check(self, scope: Scope) -> str:
        """Return the name of the site that sent a request. Raise `RefusedError` unless it may be forwarded.

        Only the request line and the headers are read. The name is empty if sites have no keys.
        """
        path, headers = scope["raw_path"], dict(scope["headers"])
        if path not in SITE_PATHS and not (self.status_of_key is None and path in REGISTRATION_PATHS):
            raise RefusedError(403, f"{printable(path)} is not open to the outside; only the fleet interface is")
        if scope["method"] != "POST" or scope["query_string"]:
            raise RefusedError(403, f"{printable(path)} accepts only POST requests without a query")
        self.check_host(headers)
        if b"upgrade" in headers or headers.get(b"content-type") != CONTENT_TYPE:
            raise RefusedError(403, f"{printable(path)} accepts only {CONTENT_TYPE.decode()}")
        for single in (PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER):
            if len([name for name, _ in scope["headers"] if name == single]) > 1:
                raise RefusedError(403, f"the request has the header {single.decode()} twice")
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not length.isdigit():
            raise RefusedError(411, "the request does not state its length")
        if int(length) > self.max_body:
            raise RefusedError(413, f"a request of {int(length)} bytes is longer than the {self.max_body} allowed")
        status, name = self.site_status(headers)
        if self.status_of_key is not None:
            if status != "admitted":
                # A SuperNode that is starting prints the text of a 400; a running one stops at a 401.
                raise RefusedError(400 if path == ACTIVATION.encode() else 401, refusal_message(status, name))
            if not is_signed(headers):
                raise RefusedError(401, f"the request is not signed with the key of site '{name}'")
        return name

    def check_host(self, headers: dict[bytes, bytes]) -> None:
        """Raise `RefusedError` if a request is for a host that is not in the coordinator's certificate."""
        if self.hosts is not None and host_name(headers.get(b"host", b"")) not in self.hosts:
            raise RefusedError(403, f"{printable(headers.get(b'host', b''))} is not a name of this coordinator")

    def site_status(self, headers: dict[bytes, bytes]) -> tuple[SiteStatus, str]:
        """Return the status and the site name of the public key in a request."""
        return self.status_of_key(public_key(headers)) if self.status_of_key is not None else ("admitted", "")


def public_key(headers: dict[bytes, bytes]) -> bytes:
    """Return the public key in a request, or no bytes if there is none.

    Requests of sites without keys (`--insecure`) have one too: their SuperNodes make one at every start.
    """
    try:
        return base64.b64decode(headers.get(PUBLIC_KEY_HEADER, b""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def refusal_message(status: SiteStatus, name: str) -> str:
    """Return the reason why a key is refused."""
    if status == "revoked":
        return f"the key of site '{name}' has been revoked by the coordinator"
    return "this key is not known to the coordinator; send it your .pub file, for `polyfed sites admit NAME FILE`"


def printable(text: bytes) -> str:
    """Return text from outside in one short line of ASCII."""
    return ascii(text[:80].decode("latin-1"))


def host_name(header: bytes) -> str:
    """Return the host of a Host header, without port and brackets."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
