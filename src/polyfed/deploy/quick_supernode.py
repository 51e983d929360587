"""The SuperNode of a site, as `polyfed join` starts it: Flower's own, with shorter waits and more signs of life.

Flower's SuperNode waits three seconds before it asks for messages again, and half a second before it looks for the
reply to a message again. In short rounds, most of the time would pass in these waits. Here they begin short and
double up to Flower's own, so that a site that has nothing to do asks as rarely as Flower's.

While its site computes, Flower's SuperNode asks for nothing. The gateway takes a silent site as lost after seconds
(`deploy/site_traffic.py`), so this one sends heartbeats meanwhile.

Flower's loop receives a message and then sends whichever reply it finds. If a coordinator or its SuperLink is killed,
the reply to a message of the old run may be left over. Every later reply would then be sent one message too late: its
site answers, but the coordinator waits. This one receives no message before it has sent the reply to the last one.

The coordinator's SuperLink lists a killed SuperNode as online until two heartbeats are missing, and refuses another
one with the same key. A SuperNode therefore writes the number of its node to a file, which it locks while it runs.
When the SuperLink rejects the next SuperNode of this site, it uses that number to end the old session, and connects.
A site without this file, for example on a second machine with a copy of the key, is rejected as before.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from polyfed.deploy.flower_protocol import (
    FLEET_MESSAGES,
    FLOWER_SUPERNODE,
    HEARTBEATS,
    NOT_ACTIVATED,
    SUPERNODE_CONNECTION,
    SUPERNODE_LOOP,
)

FIRST_WAIT = 0.05  # seconds
ALIVE_SECONDS = 3.0  # between two heartbeats while the site computes
HEARTBEAT_INTERVAL = 15  # seconds that are announced to the SuperLink; Flower has 30
SESSION_FILE = "session"  # in the SuperNode's folder, while it is online: the number of its node


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


class ReplyOrder:
    """Makes Flower's loop send the reply to the message that it has just received, and not only an older one."""

    def __init__(self) -> None:
        self._received = ""  # id of the last message

    def pulling(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        """Return Flower's function that receives a message, which records the message as well."""

        def pull_and_record(*, receive: Callable[[], Any], **arguments: Any) -> Any:
            def receive_and_record() -> Any:
                received = receive()
                if received is not None:
                    self._received = received[0].metadata.message_id
                return received

            return pull(receive=receive_and_record, **arguments)

        return pull_and_record

    def pushing(self, push: Callable[..., None]) -> Callable[..., None]:
        """Return Flower's function that sends replies, which repeats until it has sent that to the last message."""

        def push_all(*, send: Callable[..., Any], **arguments: Any) -> None:
            answered: set[str] = set()

            def send_and_record(message: Any, *more: Any) -> Any:
                answered.add(message.metadata.reply_to_message_id)
                return send(message, *more)

            while self._received not in answered:
                push(send=send_and_record, **arguments)

        return push_all


class SessionNote:
    """The number of a SuperNode's node, in a file that remains if the SuperNode is killed.

    Only the SuperNode that has locked the file reads and writes it: while another one of this site still runs, there
    is no session to take over. Without a file that can be written there is no note, and the SuperNode works without.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
                self._descriptor = descriptor
            except OSError:
                os.close(descriptor)

    def read(self) -> int | None:
        """Return the number that was noted, or None if there is none."""
        with contextlib.suppress(OSError, ValueError):
            return None if self._descriptor is None else int(os.pread(self._descriptor, 100, 0))
        return None

    def write(self, node: int | None) -> None:
        """Note a number, or that there is no session."""
        with contextlib.suppress(OSError):
            if self._descriptor is not None:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, b"" if node is None else str(node).encode(), 0)


def with_takeover(flower_client: Any, session: SessionNote) -> Any:
    """Return a subclass of Flower's client that ends the session of a killed SuperNode if its activation fails."""

    class Client(flower_client):  # type: ignore[misc]
        def ActivateNode(self, request: Any) -> Any:  # noqa: N802  (Flower's name)
            try:
                response = super().ActivateNode(request)
            except httpx.HTTPStatusError as error:
                if not self._end_session(error):
                    raise
                response = super().ActivateNode(request)
            session.write(response.node_id)
            return response

        def DeactivateNode(self, request: Any) -> Any:  # noqa: N802  (Flower's name)
            response = super().DeactivateNode(request)
            session.write(None)
            return response

        def _end_session(self, error: httpx.HTTPStatusError) -> bool:
            """End the noted session if the SuperLink refused this one because of it. Return whether it was ended."""
            node, messages = session.read(), importlib.import_module(FLEET_MESSAGES)
            with contextlib.suppress(httpx.HTTPError, ValueError, TypeError, KeyError):
                if node is not None and error.response.json()["code"] == NOT_ACTIVATED:
                    self.DeactivateNode(messages.DeactivateNodeRequest(node_id=node))
                    return True
            return False

    return Client


def install(session: SessionNote) -> None:
    """Replace clock and order of Flower's loop, the interval of its heartbeats, and its client of the SuperLink.

    `session` is the note of this SuperNode's session.
    """
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
    order = ReplyOrder()
    loop["_pull_and_store_message"] = order.pulling(loop["_pull_and_store_message"])
    loop["_push_messages"] = order.pushing(loop["_push_messages"])
    connection["HeartbeatSender"] = Sender
    connection["FleetHttpClient"] = with_takeover(connection["FleetHttpClient"], session)
    for module in (connection, heartbeats):
        module["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT_INTERVAL


def flower_supernode() -> None:
    """Run Flower's command with these changes."""
    install(SessionNote(Path(os.environ["FLWR_HOME"]) / SESSION_FILE))
    module, function = FLOWER_SUPERNODE
    getattr(importlib.import_module(module), function)()
