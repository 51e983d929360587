"""Digests at the start of frames. The first four bytes of a frame name the digest, and with it the format's version.

| start | digest | used for |
|---|---|---|
| `PF1` | SHA-256 | checkpoints, states of sites |
| `PF2` | xxh3 with 128 bits | messages between processes of one run (serial, pool and Ray), and its states |
| `PF3` | BLAKE3 with 256 bits | messages to and from sites |

SHA-256 and BLAKE3 are cryptographic: a changed frame has another digest. xxh3 finds damage only. A receiver on the
other side of a trust boundary therefore accepts `PF1` and `PF3` only. BLAKE3 is faster than SHA-256, which is part
of `state_hash`: `core/state_digest.py` computes it from the states at the end of a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import xxhash
from blake3 import blake3

from polyfed.errors import PayloadError

MAGIC_SIZE, DIGEST_SIZE = 4, 32
START = MAGIC_SIZE + DIGEST_SIZE  # of what the digest covers


@dataclass(frozen=True)
class FrameDigest:
    """A kind of digest. Shorter digests are followed by zeros."""

    magic: bytes
    name: str
    cryptographic: bool
    new: Callable[[], Any]

    def compute(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """Return the digest of the parts of a frame in `DIGEST_SIZE` bytes."""
        digest = self.new()
        for part in parts:
            digest.update(part)
        value: bytes = digest.digest()
        return value.ljust(DIGEST_SIZE, b"\0")


SHA256 = FrameDigest(b"PF1\0", "SHA-256", True, hashlib.sha256)
XXH3 = FrameDigest(b"PF2\0", "xxh3", False, xxhash.xxh3_128)
BLAKE3 = FrameDigest(b"PF3\0", "BLAKE3", True, blake3)
KINDS = {kind.magic: kind for kind in (SHA256, XXH3, BLAKE3)}


def digest_kind(data: bytes) -> FrameDigest:
    """Return the kind of a frame's digest. Raise PayloadError if this is not a frame, or of an unknown version."""
    magic = bytes(data[:MAGIC_SIZE])
    if magic in KINDS and len(data) >= START + 16:
        return KINDS[magic]
    if magic not in KINDS and magic.startswith(b"PF") and magic.endswith(b"\0"):
        versions = ", ".join(kind.magic[:-1].decode() for kind in KINDS.values())
        raise PayloadError(
            f"the message has the format {magic[:-1].decode('latin-1')!a}, which this version of polyfed cannot "
            f"read; it reads {versions}"
        )
    raise PayloadError(f"not a polyfed message: {len(data)} bytes that begin with {magic!r}")


def check_digest(data: bytes, *, cryptographic: bool) -> None:
    """Raise PayloadError if a frame is damaged, or if its digest is not cryptographic and must be."""
    kind = digest_kind(data)
    if cryptographic and not kind.cryptographic:
        raise PayloadError(
            f"the message has the checksum {kind.name}, which is for messages inside one run; "
            f"messages between sites and their coordinator need {BLAKE3.name} or {SHA256.name}"
        )
    if kind.compute((memoryview(data)[START:],)) != data[MAGIC_SIZE:START]:
        raise PayloadError("the message is damaged: its digest does not match its content")
