"""Clients that are sites of their own, reached over Flower. The engine knows a link to them by name, and no more.

Every message carries the run, the call and a digest of all of it; a reply is taken only where it names the message
that was sent. So a reply to an old call is refused, and a repeated message brings the same reply.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.engines import wire

POLL = 0.2  # seconds between two looks for replies; Flower's own sleeps are longer


@dataclass(frozen=True)
class Parcel:
    """What crosses between a coordinator and a site: a JSON head, and blocks of bytes by name."""

    head: Mapping[str, Any]
    blocks: Mapping[str, bytes] = field(default_factory=dict)

    def digest(self) -> str:
        """Of all of it."""
        sums = {name: hashlib.sha256(block).hexdigest() for name, block in sorted(self.blocks.items())}
        return hashlib.sha256(json.dumps([self.head, sums], sort_keys=True).encode()).hexdigest()


class Link(Protocol):
    """Sites by name. Letters are what Flower calls messages: each sent one has a number, by which it is answered."""

    def online(self) -> frozenset[str]:
        """The sites that can be reached now."""
        ...

    def send(self, parcels: Mapping[str, Parcel], seconds: float) -> dict[str, str]:
        """Send each site its parcel, good for so many seconds; gives the numbers of the letters by site."""
        ...

    def replies(self, letters: Iterable[str]) -> dict[str, Parcel | Failure]:
        """What has come back by now, by letter."""
        ...


class FlowerEngine:
    """Runs tasks at sites."""

    concurrent = True

    def __init__(self, link: Link, *, run: str, timeout: float) -> None:
        self._link = link
        self._run = run
        self._timeout = timeout

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        online = self._link.online()
        parcels = {task.client: self._parcel(call, shared, task) for task in tasks if task.client in online}
        wanted = {name: parcel.digest() for name, parcel in parcels.items()}
        letters = self._link.send(parcels, self._timeout)
        del parcels
        waiting = {letter: name for name, letter in letters.items()}
        deadline = time.monotonic() + self._timeout
        done: dict[str, Answer] = {}
        for task in tasks:
            name = task.client
            if name not in letters:
                done[name] = Answer(name, failure=Failure("unavailable", f"site {name} is offline"))
            while name not in done:
                for letter, reply in self._link.replies(list(waiting)).items():
                    sender = waiting.pop(letter)
                    done[sender] = answer_of(sender, reply, wanted[sender])
                if name not in done and time.monotonic() >= deadline:
                    done[name] = Answer(
                        name, failure=Failure("timeout", f"no answer within {self._timeout:g} seconds")
                    )
                elif name not in done:
                    time.sleep(POLL)
            yield done.pop(name)

    def peak_memory(self) -> int:
        return 0  # of other people's machines

    def close(self) -> None:
        """The link belongs to whoever made it."""

    def _parcel(self, call: Call, shared: bytes, task: Task) -> Parcel:
        head = {"run": self._run, "do": "call", "call": wire.call_to_json(call), "task": wire.task_to_json(task)}
        return Parcel(head, {"shared": shared, **({"own": task.own} if task.own else {})})


def answer_of(name: str, reply: Parcel | Failure, to: str) -> Answer:
    """A site's answer, if it is one to the message with digest `to`."""
    if isinstance(reply, Failure):
        return Answer(name, failure=reply)
    if reply.head.get("to") != to:
        found = str(reply.head.get("to"))[:12]
        return Answer(name, failure=Failure("refused", f"the reply answers message {found}, awaited was {to[:12]}"))
    try:
        answer = wire.answer_from_json(reply.head["answer"], reply.blocks.get("frame", b""))
        sound = answer.client == name and isinstance(answer.digest, str) and answer.seconds >= 0
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Answer(name, failure=Failure("refused", f"the reply is malformed: {type(error).__name__} {error}"))
    if not sound:
        return Answer(
            name, failure=Failure("refused", "the reply is malformed: it is another client's, or has no facts")
        )
    return answer
