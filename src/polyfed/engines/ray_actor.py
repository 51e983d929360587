"""What runs inside a Ray worker: a host whose clients stay, and whose new states leave with the answers.

No disk is shared: a state that the host does not hold comes along with its task. Everything that crosses is JSON and
bytes of ours; Ray's own transport wraps them.
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

from polyfed.core.engine import INITIAL, Task
from polyfed.core.host import Host
from polyfed.engines import framing
from polyfed.engines.ray_cluster import hearing_again
from polyfed.engines.zygote import WORKER
from polyfed.errors import PolyfedError, StateError
from polyfed.machine import peak_rss

SMALL = 64 << 10  # a block below this travels inside the message; a larger one is mapped from the object store
Block = bytes | np.ndarray[Any, Any]


def block_of(data: bytes) -> Block:
    """Bytes as they travel: large ones as an array, which Ray does not copy on its way."""
    return data if len(data) < SMALL else np.frombuffer(data, np.uint8)


def bytes_of(block: Block) -> bytes:
    return block if isinstance(block, bytes) else block.tobytes()


class TaskStateStore:
    """States that came along with tasks, and those to be handed back: nothing stays."""

    def __init__(self) -> None:
        self._came: dict[tuple[str, int], bytes] = {}
        self._made: dict[str, bytes] = {}

    def bring(self, client: str, version: int, frame: bytes) -> None:
        self._came[client, version] = frame

    def take(self, client: str) -> bytes:
        """The state that a task led to; empty if it led to none. What came along with it is let go."""
        self._came.clear()
        return self._made.pop(client, b"")

    def write(self, client: str, version: int, frame: bytes) -> None:
        self._made[client] = frame

    def read(self, client: str, version: int) -> bytes:
        if (client, version) not in self._came:
            raise StateError(f"the state of client {client} after call {version} did not come with its task")
        return self._came[client, version]

    def discard(self, client: str, versions: Sequence[int]) -> None:
        """Nothing is kept here; whoever gets the answer discards."""


class Actor:
    """One worker: it lives as long as the engine that made it, and does one thing at a time."""

    def __init__(self) -> None:
        self._store = TaskStateStore()
        self._host: Host | None = None
        self._shared: tuple[int, bytes] = (0, b"")

    def set_up(self, maker: str, description: bytes, files: Sequence[Block]) -> str:
        """Make the host. What went wrong, as a sentence, or nothing.

        `maker` is 'module:function' of ours, which turns a description, files and a store into a host.
        """
        torch.set_num_threads(1)  # one core each; also what makes results independent of the number of workers
        os.environ[WORKER] = "1"  # a user's file that is imported here must not start a run
        hearing_again()
        told = json.loads(description)
        sys.path += [folder for folder in told.get("search", []) if folder not in sys.path]
        module, _, name = maker.partition(":")
        try:
            make = getattr(importlib.import_module(module), name)
            self._host = make(told, [bytes_of(file) for file in files], self._store)
        except PolyfedError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def work(self, head: bytes, shared: Block, blocks: Sequence[Block]) -> list[Block]:
        """A batch of tasks of one call: a head that says what was answered, and the blocks it speaks of."""
        assert self._host is not None
        order = json.loads(head)
        call = framing.call_from_json(order["call"])
        if self._shared[0] != call.number:
            self._shared = (call.number, bytes_of(shared))
        came = iter(blocks)
        said: list[dict[str, Any]] = []
        out: list[Block] = []
        for told in order["tasks"]:
            own = bytes_of(next(came)) if told["own"] else b""
            state = bytes_of(next(came)) if told["state"] else b""
            task = framing.task_from_json(told, own)
            if not state and not self._has(task):
                said.append({"missing": True})  # it was let go for lack of room: to be sent along
                continue
            if state:
                self._store.bring(task.client, task.base, state)
            answer = self._host.handle(call, task, self._shared[1])
            made = self._store.take(task.client)
            said.append({"answer": framing.answer_to_json(answer), "state": bool(made)})
            out += [block_of(answer.frame), block_of(made)] if made else [block_of(answer.frame)]
        return [json.dumps(said).encode(), *out]

    def _has(self, task: Task) -> bool:
        assert self._host is not None
        return task.base == INITIAL or self._host.holds(task.client, task.base)

    def peak(self) -> int:
        return peak_rss()
