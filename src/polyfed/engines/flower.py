"""Engine for clients that are real sites, reached over Flower. It only knows a link that addresses sites by name.

Every message holds the run, the call and the task. A reply must quote the digest of the message that it answers, so
that a reply to an old call is refused. A repeated message gets the same reply.
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

FIRST_POLL_SECONDS = 0.1  # between two polls for replies; the interval doubles, because polls cost the SuperLink time
POLL_SECONDS = 0.4  # longest interval; Flower's own is longer


@dataclass(frozen=True)
class SiteMessage:
    """A message between coordinator and site: a JSON header, and named blocks of bytes."""

    header: Mapping[str, Any]
    blocks: Mapping[str, bytes] = field(default_factory=dict)

    def digest(self) -> str:
        """Return the SHA-256 digest of header and blocks."""
        digests = {name: hashlib.sha256(block).hexdigest() for name, block in sorted(self.blocks.items())}
        return hashlib.sha256(json.dumps([self.header, digests], sort_keys=True).encode()).hexdigest()


class SiteLink(Protocol):
    """The connection to sites, which are addressed by name. Every sent message has an id, by which it is answered."""

    def online(self) -> frozenset[str]:
        """Return the sites that can be reached now."""
        ...

    def send(self, messages: Mapping[str, SiteMessage], ttl: float) -> dict[str, str]:
        """Send each site its message, which expires after `ttl` seconds. Return the message ids by site."""
        ...

    def poll(self, message_ids: Iterable[str]) -> dict[str, SiteMessage | Failure]:
        """Return the replies that have arrived, by the id of the message they answer. Do not wait for others."""
        ...

    def lost(self) -> frozenset[str]:
        """Return the sites that have gone without a notice, so that no reply of them can be expected."""
        ...

    def reset(self, name: str) -> None:
        """Repeat the handshake with a site before the next call, because the site could not run its task."""
        ...


class FlowerEngine:
    """Runs tasks at sites."""

    concurrent = True
    evaluates_after_steps = False  # a site decides about each evaluation
    trusted = False

    def __init__(self, link: SiteLink, *, run: str, timeout: float) -> None:
        self._link = link
        self._run = run
        self._timeout = timeout

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        online = self._link.online()
        messages = {task.client: self._message(call, shared, task) for task in tasks if task.client in online}
        digests = {name: message.digest() for name, message in messages.items()}
        message_ids = self._link.send(messages, self._timeout)
        del messages
        pending = {message_id: name for name, message_id in message_ids.items()}
        deadline = time.monotonic() + self._timeout
        answers: dict[str, Answer] = {}
        interval = FIRST_POLL_SECONDS
        for task in tasks:
            name = task.client
            if name not in message_ids:
                answers[name] = Answer(name, failure=Failure("unavailable", f"site {name} is offline"))
            while name not in answers:
                for message_id, reply in self._link.poll(list(pending)).items():
                    sender = pending.pop(message_id)
                    answers[sender] = answer = parse_reply(sender, reply, digests[sender])
                    if answer.failure is not None and answer.failure.kind == "unavailable":
                        self._link.reset(sender)
                for message_id, sender in [(i, s) for i, s in pending.items() if s in self._link.lost()]:
                    del pending[message_id]
                    answers[sender] = Answer(sender, failure=Failure("unavailable", f"site {sender} was lost"))
                    self._link.reset(sender)
                if name not in answers and time.monotonic() >= deadline:
                    answers[name] = Answer(
                        name, failure=Failure("timeout", f"no answer within {self._timeout:g} seconds")
                    )
                elif name not in answers:
                    time.sleep(interval)
                    interval = min(2 * interval, POLL_SECONDS)
            yield answers.pop(name)

    def peak_memory(self) -> int:
        return 0  # unknown: the memory is on the sites' machines

    def close(self) -> None:
        """Do nothing. The caller closes the link."""

    def _message(self, call: Call, shared: bytes, task: Task) -> SiteMessage:
        header = {
            "run": self._run,
            "do": "call",
            "call": framing.call_to_json(call),
            "task": framing.task_to_json(task),
        }
        return SiteMessage(header, {"shared": shared, **({"own": task.own} if task.own else {})})


FAILURE_KINDS = ("raised", "died", "timeout", "refused", "unavailable")  # that a site may report
MAX_TEXT = 2000  # characters of a text that a site sends
MAX_FITS = 1000  # training records in one reply
MAX_VALUE = 1e15  # of every count, loss and time


def parse_reply(name: str, reply: SiteMessage | Failure, digest: str) -> Answer:
    """Return a site's answer to the message with this digest. Any other reply becomes a failure of that site."""
    if isinstance(reply, Failure):
        return Answer(name, failure=reply)
    try:
        if reply.header.get("to") != digest:
            quoted = str(reply.header.get("to"))[:12]
            raise PayloadError(f"the reply answers message {quoted}; expected message {digest[:12]}")
        if "refused" in reply.header:
            return Answer(name, failure=Failure("refused", str(reply.header["refused"])[:MAX_TEXT]))
        answer = reply.header["answer"]
        if answer["client"] != name:
            raise PayloadError("the reply is malformed: it names another client")
        return Answer(
            name,
            reply.blocks.get("frame", b""),
            _parse_failure(answer["failure"]),
            _parse_text(answer["digest"], "digest"),
            _parse_number(answer["seconds"], "seconds", minimum=0.0),
            tuple(_parse_fit(fit) for fit in _check_fits(answer["trained"])),
        )
    except PayloadError as error:
        reason = str(error)
    except Exception as error:  # the header may hold anything
        reason = f"the reply is malformed: {type(error).__name__} {str(error)[:100]}"
    return Answer(name, failure=Failure("refused", reason))


def _parse_failure(entries: Any) -> Failure | None:
    if entries is None:
        return None
    kind = entries["kind"]
    if kind == "storage":  # storage at a site concerns that site alone and must not end the run
        kind = "unavailable"
    if kind not in FAILURE_KINDS:
        raise PayloadError(f"the reply is malformed: unknown kind of failure {str(kind)[:40]!r}")
    return Failure(kind, _parse_text(entries["message"], "message"), _parse_text(entries["detail"], "detail"))


def _check_fits(fits: Any) -> Sequence[Any]:
    if not isinstance(fits, list | tuple) or len(fits) > MAX_FITS:
        raise PayloadError("the reply is malformed: 'trained' is not a list of training records")
    return fits


def _parse_fit(fit: Any) -> TrainingStats:
    # training may diverge: a loss that is not finite is valid, and is left out of the mean
    loss = fit["loss"]
    finite = not isinstance(loss, float) or math.isfinite(loss)
    return TrainingStats(
        _parse_number(loss, "loss") if finite else math.nan,
        _parse_count(fit["samples"], "samples"),
        _parse_count(fit["steps"], "steps"),
    )


def _parse_number(value: Any, name: str, minimum: float = -MAX_VALUE) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= MAX_VALUE:
        raise PayloadError(f"the reply is malformed: {name} is {str(value)[:40]}")
    return float(value)


def _parse_count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_VALUE:
        raise PayloadError(f"the reply is malformed: {name} is {str(value)[:40]}")
    return value


def _parse_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise PayloadError(f"the reply is malformed: {name} is not a text")
    return value[:MAX_TEXT]
