"""Traffic of each site at the gateway: its sessions, its requests in flight, and whether it is still there.

A SuperNode asks for messages at least every three seconds, and sends heartbeats as often while its site computes
(`deploy/quick_supernode.py`). One that has died is noticed here before Flower notices it. A SuperNode that hashes,
stores or loads a large message sends no requests meanwhile, so sites with large messages get more time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator

from polyfed.deploy.request_filter import MAX_BODY_BYTES, RefusedError

MAX_IN_FLIGHT = 2 * MAX_BODY_BYTES  # bytes of bodies that a site may send at once; further requests wait
WAIT_SECONDS = 30.0  # for which a request waits until other requests of its site have been forwarded
SILENT_SECONDS = 8.0  # without a request, after which a site is taken as lost: rounds continue within ten seconds
TICKS = 32  # in SILENT_SECONDS
BYTES_PER_SECOND = 5_000_000  # of a site's largest message, for which it gets another second
FORGOTTEN_SECONDS = 600.0  # without a request, after which a site is forgotten; Flower has noticed its loss by then


class SiteTraffic:
    """Requests in flight and signs of life, by public key. Only the event loop of the gateway changes it."""

    def __init__(self) -> None:
        self._in_flight: Counter[bytes] = Counter()  # bytes
        self._requests: Counter[bytes] = Counter()
        # Ticks since the last sign of life. They pass only while the event loop runs, so that a busy coordinator does
        # not take its sites as lost.
        self._ticks: dict[bytes, int] = {}
        self._message: Counter[bytes] = Counter()  # bytes in both directions since the site asked for messages
        self._largest: dict[bytes, int] = {}  # value of _message so far
        self._sessions: dict[bytes, int] = {}
        self._next_session = itertools.count(1)  # over all sites, so that no number is used twice
        self._clock: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def request(self, key: bytes, size: int, *, is_alive: bool) -> AsyncIterator[None]:
        """Count a request with a body of `size` bytes. Wait if too much of the requests of its key is in flight.

        `is_alive` says whether the request is a sign of life. Raise `RefusedError` if the wait takes too long.
        """
        await self._wait_for_room(key, size)
        self._in_flight[key] += size
        self._requests[key] += 1
        if is_alive:
            self.saw(key)
        try:
            yield
        finally:
            self._in_flight[key] -= size
            self._requests[key] -= 1
            if is_alive:
                self.saw(key)

    def saw(self, key: bytes) -> None:
        """Note a sign of life."""
        self._ticks[key] = 0
        if self._clock is None:
            self._clock = asyncio.get_running_loop().create_task(self._count_ticks())

    def asked_for_messages(self, key: bytes) -> None:
        """Note that a site has dealt with the last message."""
        self._message[key] = 0

    def transferred(self, key: bytes, size: int) -> None:
        """Count bytes of a message to or from a site."""
        self._message[key] += size
        self._largest[key] = max(self._largest.get(key, 0), self._message[key])

    def connected(self, key: bytes) -> None:
        """Note that a site has connected, for the first time or again."""
        self._sessions[key] = next(self._next_session)

    def session(self, key: bytes) -> int:
        """Return the number of a site's session, or 0 if it connected before this gateway started.

        Messages of an earlier session may have been lost.
        """
        return self._sessions.get(key, 0)

    def silent(self) -> frozenset[bytes]:
        """Return the keys of sites that have sent requests before and no longer do. May be called from any thread."""
        return frozenset(key for key, ticks in list(self._ticks.items()) if ticks >= self._allowed_ticks(key))

    def _allowed_ticks(self, key: bytes) -> float:
        more_seconds = self._largest.get(key, 0) / BYTES_PER_SECOND
        return TICKS * (1 + more_seconds / SILENT_SECONDS)

    async def _wait_for_room(self, key: bytes, size: int) -> None:
        waited, step = 0.0, 0.05
        while self._in_flight[key] and self._in_flight[key] + size > MAX_IN_FLIGHT:
            if waited >= WAIT_SECONDS:
                raise RefusedError(503, "this site has too many requests in flight; try again")
            await asyncio.sleep(step)
            waited += step

    async def _count_ticks(self) -> None:
        while True:
            await asyncio.sleep(SILENT_SECONDS / TICKS)
            for key in list(self._ticks):
                if not self._requests[key]:  # otherwise the site waits for the SuperLink
                    self._ticks[key] += 1
                if self._ticks[key] * SILENT_SECONDS / TICKS >= FORGOTTEN_SECONDS:
                    self._forget(key)

    def _forget(self, key: bytes) -> None:
        entries = (self._ticks, self._requests, self._in_flight, self._message, self._largest, self._sessions)
        for by_key in entries:
            by_key.pop(key, None)
