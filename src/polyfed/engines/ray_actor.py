"""The Ray actor: a host that keeps clients in memory and returns new states with the answers.

Nodes share no disk, so a state that the host does not have is sent with the task. Everything that is sent is JSON or
encoded payloads; only Ray's own transport wraps them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from polyfed import profiling
from polyfed.core.client_host import Host
from polyfed.core.engine import INITIAL, FrameBytes, Task
from polyfed.core.joined_bytes import join
from polyfed.engines import framing
from polyfed.engines.fork_server import WORKER
from polyfed.engines.ray_cluster import restore_proxy
from polyfed.errors import PolyfedError, StateError
from polyfed.machine import keep_freed_memory, peak_rss
from polyfed.profiling import Recorder

SMALL = 64 << 10  # smaller blocks travel inside the message; larger ones are mapped from Ray's object store
Block = bytes | np.ndarray[Any, Any]


def block_of(data: bytes) -> Block:
    """Convert bytes for Ray. Large ones become an array, which Ray does not copy."""
    return data if len(data) < SMALL else np.frombuffer(data, np.uint8)


def bytes_of(block: Block) -> bytes:
    return block if isinstance(block, bytes) else block.tobytes()


class TaskStateStore:
    """States that were received with tasks, and new states to return. Nothing is stored permanently."""

    def __init__(self) -> None:
        self._received: dict[tuple[str, int], bytes] = {}
        self._new: dict[str, bytes] = {}

    def add(self, client: str, version: int, frame: bytes) -> None:
        """Add a state that was received with a task."""
        self._received[client, version] = frame

    def take_new(self, client: str) -> bytes:
        """Return a client's new state, or empty bytes if there is none. Forget the received states."""
        self._received.clear()
        return self._new.pop(client, b"")

    def write(self, client: str, version: int, frame: FrameBytes, discard: Sequence[int] = ()) -> None:
        self._new[client] = join(frame)  # the receiver of the answer stores it and discards old ones

    def read(self, client: str, version: int) -> bytes:
        if (client, version) not in self._received:
            raise StateError(f"the state of client {client} after call {version} was not sent with its task")
        return self._received[client, version]


class Actor:
    """One worker. It lives as long as its engine and runs one batch at a time."""

    def __init__(self) -> None:
        self._store = TaskStateStore()
        self._host: Host | None = None
        self._shared: tuple[int, bytes] = (0, b"")
        self._recorder: Recorder | None = None  # None: the run is not profiled

    def set_up(self, host_factory: str, description: bytes, files: Sequence[Block]) -> str:
        """Create the host. Return an error message, or an empty string.

        `host_factory` is the 'module:function' that creates a host from a description, files and a store.
        """
        keep_freed_memory()
        torch.set_num_threads(1)  # one core per worker; results then do not depend on the number of workers
        os.environ[WORKER] = "1"  # a user's file that is imported here must not start a run
        restore_proxy()
        settings = json.loads(description)
        self._recorder = Recorder() if settings.get("profile") else None
        sys.path += [folder for folder in settings.get("search", []) if folder not in sys.path]
        module, _, name = host_factory.partition(":")
        try:
            create = getattr(importlib.import_module(module), name)
            self._host = create(settings, [bytes_of(file) for file in files], self._store)
        except PolyfedError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def work(self, head: bytes, shared: Block, blocks: Sequence[Block]) -> list[Block]:
        """Run a batch of tasks of one call. Return a JSON head about the answers, and their blocks."""
        assert self._host is not None
        request = json.loads(head)
        call = framing.call_from_json(request["call"])
        if self._shared[0] != call.number:
            self._shared = (call.number, bytes_of(shared))
        received = iter(blocks)
        entries: list[dict[str, Any]] = []
        out: list[Block] = []
        for entry in request["tasks"]:
            own = bytes_of(next(received)) if entry["own"] else b""
            state = bytes_of(next(received)) if entry["state"] else b""
            task = framing.task_from_json(entry, own)
            if not state and not self._has(task):
                entries.append({"missing": True})  # it was dropped to free memory and must be sent with the task
                continue
            if state:
                self._store.add(task.client, task.base, state)
            with profiling.recording(self._recorder):
                answer = self._host.handle(call, task, self._shared[1])
            new = self._store.take_new(task.client)
            entries.append({"answer": framing.answer_to_json(answer), "state": bool(new)})
            out += [block_of(answer.frame), block_of(new)] if new else [block_of(answer.frame)]
        if self._recorder is not None:
            entries[-1]["profile"] = self._recorder.take()  # of the whole batch
        return [json.dumps(entries).encode(), *out]

    def _has(self, task: Task) -> bool:
        assert self._host is not None
        return task.base == INITIAL or self._host.holds(task.client, task.base)

    def peak(self) -> int:
        return peak_rss()
