"""Server-sent events: every open page has one stream, on which the server sends what changed in the list of runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from polyfed.ui.run_index import MIN_INTERVAL, RunIndex

MAX_STREAMS = 16  # open at the same time; a page beyond polls
HEARTBEAT = 10.0  # seconds without a change after which a heartbeat is sent
RETRY = 2000  # milliseconds after which a browser connects again
SHORT = 0.02  # seconds between two parts of a large folder


@dataclass
class EventStreams:
    """The open streams. `closing` tells whether the server is shutting down; streams end then."""

    runs: RunIndex
    limit: int = MAX_STREAMS
    heartbeat: float = HEARTBEAT
    closing: Callable[[], bool] = lambda: False
    count: int = field(default=0, init=False)

    def open(self, since: int) -> Response:
        """Return a stream of the changes after a revision, or an error response if there are too many streams."""
        if self.count >= self.limit:
            message = f"{self.limit} pages receive live updates already; this page asks for updates instead"
            return PlainTextResponse(message, 503)
        self.count += 1
        return _Stream(self, since)

    async def events(self, since: int) -> AsyncIterator[str]:
        """Yield changes as they appear, and a heartbeat after a silence."""
        yield f"retry: {RETRY}\n\n"
        last = time.monotonic()
        while not self.closing():
            changes = await run_in_threadpool(self.runs.changes, since)
            if changes["full"] or changes["revision"] != since:
                since, last = changes["revision"], time.monotonic()
                yield f"id: {since}\nevent: changes\ndata: {json.dumps(changes, allow_nan=False)}\n\n"
            elif time.monotonic() - last >= self.heartbeat:
                last = time.monotonic()
                yield f"event: heartbeat\ndata: {changes['now']}\n\n"
            await asyncio.sleep(SHORT if changes["more"] else MIN_INTERVAL)


class _Stream(StreamingResponse):
    """A response that counts as open until it ends, however it ends."""

    def __init__(self, streams: EventStreams, since: int) -> None:
        super().__init__(streams.events(since), media_type="text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.count -= 1
