"""The SuperNode of a site, as `polyfed join` starts it: Flower's own, with short waits while rounds are running.

Flower's SuperNode waits three seconds before it asks for messages again, and half a second before it looks for the
reply to a message again. In short rounds, most of the time would pass in these waits. Here they begin short and
double up to Flower's own, so that a site that has nothing to do asks as rarely as Flower's.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from polyfed.deploy.flower_protocol import FLOWER_SUPERNODE, SUPERNODE_LOOP

FIRST_WAIT = 0.05  # seconds


class GrowingWaits:
    """The module `time`, for Flower's loop: waits of the same length after each other begin short and double."""

    def __init__(self) -> None:
        self._kind = 0.0  # length of the last wait as requested: it tells what was waited for
        self._wait = FIRST_WAIT

    def sleep(self, seconds: float) -> None:
        if seconds != self._kind:  # what was waited for has happened
            self._kind, self._wait = seconds, FIRST_WAIT
        time.sleep(min(self._wait, seconds))
        self._wait = min(2 * self._wait, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def flower_supernode() -> None:
    """Run Flower's command with these waits."""
    vars(importlib.import_module(SUPERNODE_LOOP))["time"] = GrowingWaits()
    module, function = FLOWER_SUPERNODE
    getattr(importlib.import_module(module), function)()
