"""HTTP connections of the gateway that are closed if no request arrives on them."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 15.0  # until the header of a request must have arrived, from the connection or its first byte


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP protocol that closes connections without a request. Otherwise 512 silent ones would block the gateway.

    The limit applies to the header of every request, not only of the first one on a connection.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEADER_SECONDS, self._close_if_idle)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()
        elif self._timer is None and self._idle():
            self._timer = self.loop.call_later(HEADER_SECONDS, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        self._timer = None
        if self._idle() and not self.transport.is_closing():
            self.transport.close()
