"""Clients that are sites of their own, reached over Flower. The engine knows a link to them by name, and no more.

Every message carries the run, the call and a digest of all of it; a reply is taken only where it names the message
that was sent. So a reply to an old call is refused, and a repeated message brings the same reply.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from polyfed.core.engine import Answer, Call, Failure, Task, TrainingStats
from polyfed.engines import framing
from polyfed.errors import PayloadError

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
        """What has come back by now, by letter; nothing is waited for."""
        ...

    def doubt(self, name: str) -> None:
        """A site says that it cannot do what is asked of it: it is to be looked at anew before the next call."""
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
                    done[sender] = answer = answer_of(sender, reply, wanted[sender])
                    if answer.failure is not None and answer.failure.kind == "unavailable":
                        self._link.doubt(sender)
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
        head = {
            "run": self._run,
            "do": "call",
            "call": framing.call_to_json(call),
            "task": framing.task_to_json(task),
        }
        return Parcel(head, {"shared": shared, **({"own": task.own} if task.own else {})})


KINDS = ("raised", "died", "timeout", "refused", "unavailable")  # of failures that a site may tell of
LONGEST = 2000  # characters of what a site says in words
MOST_FITS = 1000  # that one call may tell of
HUGE = 1e15  # no count, no loss and no time is larger


def answer_of(name: str, reply: Parcel | Failure, to: str) -> Answer:
    """A site's answer, if it is one to the message with digest `to`; anything else is that site's failure."""
    if isinstance(reply, Failure):
        return Answer(name, failure=reply)
    try:
        if reply.head.get("to") != to:
            found = str(reply.head.get("to"))[:12]
            raise PayloadError(f"the reply answers message {found}, awaited was {to[:12]}")
        if "refused" in reply.head:
            return Answer(name, failure=Failure("refused", str(reply.head["refused"])[:LONGEST]))
        head = reply.head["answer"]
        if head["client"] != name:
            raise PayloadError("the reply is malformed: it is another client's")
        return Answer(
            name,
            reply.blocks.get("frame", b""),
            _failure(head["failure"]),
            _text(head["digest"], "digest"),
            _number(head["seconds"], "seconds", least=0.0),
            tuple(_trained(fit) for fit in _listed(head["trained"])),
        )
    except PayloadError as error:
        why = str(error)
    except Exception as error:  # of a head that is anything at all
        why = f"the reply is malformed: {type(error).__name__} {str(error)[:100]}"
    return Answer(name, failure=Failure("refused", why))


def _failure(head: Any) -> Failure | None:
    if head is None:
        return None
    kind = head["kind"]
    if kind == "storage":  # a matter of that site alone, which must not end the run
        kind = "unavailable"
    if kind not in KINDS:
        raise PayloadError(f"the reply is malformed: there is no failure of kind {str(kind)[:40]!r}")
    return Failure(kind, _text(head["message"], "message"), _text(head["detail"], "detail"))


def _listed(fits: Any) -> Sequence[Any]:
    if not isinstance(fits, list | tuple) or len(fits) > MOST_FITS:
        raise PayloadError("the reply is malformed: 'trained' is no list of what was trained")
    return fits


def _trained(fit: Any) -> TrainingStats:
    # a loss that is not finite is what training can come to; it is left out of the mean
    loss = fit["loss"]
    known = not isinstance(loss, float) or math.isfinite(loss)
    return TrainingStats(
        _number(loss, "loss") if known else math.nan, _count(fit["samples"], "samples"), _count(fit["steps"], "steps")
    )


def _number(value: Any, what: str, least: float = -HUGE) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= HUGE:
        raise PayloadError(f"the reply is malformed: {what} is {str(value)[:40]}")
    return float(value)


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= HUGE:
        raise PayloadError(f"the reply is malformed: {what} is {str(value)[:40]}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise PayloadError(f"the reply is malformed: {what} is no text")
    return value[:LONGEST]
