"""The SuperNode of a site, as `polyfed join` starts it: Flower's own, with shorter waits and more signs of life.

Flower's SuperNode waits three seconds before it asks for messages again, and half a second before it looks for the
reply to a message again. In short rounds, most of the time would pass in these waits. Here they begin short and
double up to Flower's own, so that a site that has nothing to do asks as rarely as Flower's.

While its site computes, Flower's SuperNode asks for nothing. The gateway takes a silent site as lost after seconds
(`deploy/site_traffic.py`), so this one sends heartbeats meanwhile. The coordinator's SuperLink accepts a killed site
again after two missing heartbeats, which are more frequent here.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from typing import Any

from polyfed.deploy.flower_protocol import FLOWER_SUPERNODE, HEARTBEATS, SUPERNODE_CONNECTION, SUPERNODE_LOOP

FIRST_WAIT = 0.05  # seconds
ALIVE_SECONDS = 3.0  # between two heartbeats while the site computes
HEARTBEAT_INTERVAL = 15  # seconds that are announced to the SuperLink; Flower has 30


class LoopClock:
    """The module `time` for Flower's loop, which waits for the next message, and less long at a time for a reply.

    Waits of the same kind begin short and double. `send_heartbeat` is called while the loop waits for a reply.
    """

    def __init__(self, send_heartbeat: Callable[[], object]) -> None:
        self._send_heartbeat = send_heartbeat
        self._kind = 0.0  # length of the last wait as requested, which tells what the loop waits for
        self._wait = FIRST_WAIT
        self._last_sign = 0.0  # of life

    def sleep(self, seconds: float) -> None:
        if seconds != self._kind:  # the message or the reply has arrived
            self._kind, self._wait, self._last_sign = seconds, FIRST_WAIT, time.monotonic()
        time.sleep(min(self._wait, seconds))
        self._wait = min(2 * self._wait, seconds)
        waits_for_reply = seconds < 1
        if waits_for_reply and time.monotonic() - self._last_sign >= ALIVE_SECONDS:
            with contextlib.suppress(Exception):  # Flower's own thread of heartbeats deals with errors
                self._send_heartbeat()
            self._last_sign = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def install() -> None:
    """Replace the clock of Flower's loop, and the interval of its heartbeats."""
    loop, connection, heartbeats = (
        vars(importlib.import_module(name)) for name in (SUPERNODE_LOOP, SUPERNODE_CONNECTION, HEARTBEATS)
    )
    senders: list[Callable[[], bool]] = []
    flower_sender: Any = connection["HeartbeatSender"]

    class Sender(flower_sender):  # type: ignore[misc]
        """Flower's thread of heartbeats, whose function the loop uses as well."""

        def __init__(self, heartbeat_fn: Callable[[], bool]) -> None:
            super().__init__(heartbeat_fn)
            senders.append(heartbeat_fn)

    loop["time"] = LoopClock(lambda: [send() for send in senders])
    connection["HeartbeatSender"] = Sender
    for module in (connection, heartbeats):
        module["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT_INTERVAL


def flower_supernode() -> None:
    """Run Flower's command with these changes."""
    install()
    module, function = FLOWER_SUPERNODE
    getattr(importlib.import_module(module), function)()
