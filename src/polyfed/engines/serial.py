"""The serial engine: all clients in this process, one after the other. Every other engine must give equal results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyfed.core.client_host import Host
from polyfed.core.engine import Answer, Call, Task


class SerialEngine:
    """Runs tasks in order, with the same encoded messages as every other engine."""

    concurrent = False
    evaluates_after_steps = True
    trusted = True

    def __init__(self, host: Host) -> None:
        self._host = host

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        for task in tasks:
            yield self._host.handle(call, task, shared)

    def peak_memory(self) -> int:
        return 0

    def close(self) -> None:
        pass
