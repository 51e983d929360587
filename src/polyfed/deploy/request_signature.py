"""Signatures of requests. Flower signs the time of a request, so its headers are enough to check it."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polyfed.deploy.flower_protocol import (
    MAX_CLOCK_AHEAD,
    MAX_CLOCK_BEHIND,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
)


def is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request has a recent time that is signed with the key that it names."""
    timestamp = headers.get(TIMESTAMP_HEADER, b"")
    try:
        key = _load_key(base64.b64decode(headers[PUBLIC_KEY_HEADER], validate=True))
        signature = base64.b64decode(headers[SIGNATURE_HEADER], validate=True)
        signed_at = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
        key.verify(signature, timestamp, ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, InvalidSignature):  # whatever a stranger may send
        return False
    return -MAX_CLOCK_AHEAD < age < MAX_CLOCK_BEHIND + MAX_CLOCK_AHEAD


@lru_cache(maxsize=1000)
def _load_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    key = serialization.load_pem_public_key(pem)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("not a key of a site")
    return key
