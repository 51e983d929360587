"""Messages between an engine and its workers: a JSON head and a block of bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from polyfed.core.engine import Answer, Call, Failure, Task, TrainingStats

LARGE = 64 << 10  # bytes of a block that is sent separately, because joining it with its head would copy it twice
SEPARATE = 1 << 31  # flag in the length of the head: the block follows as a message of its own


def send(connection: Connection, head: Mapping[str, Any], block: bytes = b"") -> None:
    text = json.dumps(head).encode()
    if len(block) < LARGE:
        connection.send_bytes(b"".join((len(text).to_bytes(4, "little"), text, block)))
    else:
        connection.send_bytes((SEPARATE | len(text)).to_bytes(4, "little") + text)
        connection.send_bytes(block)


def receive(connection: Connection) -> tuple[dict[str, Any], bytes]:
    data = connection.recv_bytes()
    start = int.from_bytes(data[:4], "little")
    end = 4 + (start & ~SEPARATE)
    head: dict[str, Any] = json.loads(data[4:end])
    return head, connection.recv_bytes() if start & SEPARATE else data[end:]


def call_to_json(call: Call) -> dict[str, Any]:
    return asdict(call)


def call_from_json(head: Mapping[str, Any]) -> Call:
    names = (tuple(head[key]) for key in ("steps", "labels", "measures", "metrics"))
    return Call(head["number"], head["round"], *names)


def task_to_json(task: Task) -> dict[str, Any]:
    return {"client": task.client, "base": task.base, "discard": list(task.discard)}


def task_from_json(head: Mapping[str, Any], own: bytes) -> Task:
    return Task(head["client"], head["base"], own, tuple(head["discard"]))


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """Return the head of an answer. Its block is the reply; an evaluation is a few bytes and part of the head."""
    evaluation = base64.b64encode(answer.evaluation).decode()
    return {**asdict(answer), "frame": None, "evaluation": evaluation}


def answer_from_json(head: Mapping[str, Any], frame: bytes) -> Answer:
    failure = Failure(**head["failure"]) if head["failure"] else None
    trained = tuple(TrainingStats(**item) for item in head["trained"])
    notes = tuple(str(note) for note in head["notes"])
    evaluation = base64.b64decode(head["evaluation"])
    figures = (head["digest"], head["seconds"], trained, notes)
    return Answer(head["client"], frame, failure, *figures, evaluation, head["evaluation_seconds"])
