"""Digests of client states for `state_hash`.

A state is written in every round, with a fast checksum against damage. Its SHA-256 digest is needed once, at the end
of a run, and is computed then.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from polyfed.core.engine import StateStore
from polyfed.core.frame_digest import SHA256, START, check_digest
from polyfed.errors import PayloadError, StateError

THREADS = 2  # hashing does not hold Python's lock; each thread holds one state


def content_digest(frame: bytes) -> str:
    """Return the SHA-256 digest of what a frame contains, which does not depend on the checksum that it carries."""
    return SHA256.compute((memoryview(frame)[START:],)).hex()


def content_digests(store: StateStore, versions: Mapping[str, int]) -> dict[str, str]:
    """Return the digest of every client's state in the given version."""

    def one(client: str) -> str:
        frame = store.read(client, versions[client])
        try:
            check_digest(frame, cryptographic=False)
        except PayloadError as error:
            raise StateError(f"the state of client {client} is damaged: {error}") from None
        return content_digest(frame)

    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(versions, threads.map(one, versions), strict=True))
