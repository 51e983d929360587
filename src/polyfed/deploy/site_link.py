"""The coordinator's link to its sites over Flower's grid. It addresses sites by name; Flower uses random numbers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx

from polyfed.core.engine import Failure
from polyfed.deploy.flower_adapter import ErrorCode, Grid, Message
from polyfed.deploy.messages import MESSAGE_TYPE, from_flower_message, to_record_dict
from polyfed.deploy.serverapp_task import RaisingGrid
from polyfed.engines.flower import SiteMessage
from polyfed.errors import PayloadError, PolyfedError, RunError

HANDSHAKE_SECONDS = 120.0  # a site loads its data and builds its model before it answers
MAX_TEXT = 600  # characters of a site's text that are passed on
REPEAT_SECONDS = 10.0  # after which a handshake is repeated, then after twice as long: a killed SuperLink may lose it
REFUSED_SECONDS = 60.0  # after which the handshake with a refused site is repeated
RETRY_SECONDS = 30.0  # for which requests to a SuperLink that does not answer are repeated

# Flower's error codes of a message without a reply, as kind and text of a failure.
FAILURES: dict[int, Any] = {
    ErrorCode.MESSAGE_UNAVAILABLE: ("unavailable", "the message was lost in transit"),
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: ("unavailable", "the reply was lost in transit"),
    ErrorCode.NODE_UNAVAILABLE: ("unavailable", "the site went offline"),
    ErrorCode.INVALID_FAB: ("refused", "the site refused the app of this run"),
    ErrorCode.CLIENT_APP_CRASHED: ("died", "the site's process died"),
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: ("raised", "the site's app raised an error"),
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: ("raised", "the site could not load its app"),
}

Response = TypeVar("Response")


class Presence(Protocol):
    """What the gateway knows about sites, by public key. `SiteTraffic` describes both functions."""

    def silent(self) -> frozenset[bytes]: ...

    def session(self, key: bytes) -> int: ...


class AlwaysPresent:
    """Used without a gateway: Flower's list of nodes is enough."""

    def silent(self) -> frozenset[bytes]:
        return frozenset()

    def session(self, key: bytes) -> int:
        return 0


@dataclass(frozen=True)
class _SentHandshake:
    """A handshake that a node has not answered."""

    node: int
    session: int  # of the site when it was sent
    repeat_at: float  # time at which another one is sent


class GridLink:
    """Sites by name over a grid.

    Every new node receives `handshake`. Its reply gives its name and its offer. `name_of_key` returns the name under
    which a key is registered, or is None if sites have no keys. `check_offer` raises `InputError` if a site of this
    name and offer cannot take part. `notify` receives the reasons of refusals. A reply may have up to `limit` bytes.
    `presence` tells which sites no longer send requests or have connected again, although Flower may list them.
    `check_alive` raises `RunError` if the SuperLink has ended.
    """

    def __init__(
        self,
        grid: Grid,
        handshake: SiteMessage,
        name_of_key: Callable[[bytes], str | None] | None,
        check_offer: Callable[[str, dict[str, Any]], None],
        notify: Callable[[str], None],
        limit: int,
        presence: Presence | None = None,
        check_alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._grid = grid
        self._check_alive = check_alive
        self._downloader = grid.reply_downloader(limit) if isinstance(grid, RaisingGrid) else None
        self._notify = notify
        self._handshake = handshake
        self._name_of_key = name_of_key
        self._check_offer = check_offer
        self._presence = presence or AlwaysPresent()
        self._nodes: dict[str, int] = {}  # of sites whose handshake is complete
        self._keys: dict[str, bytes] = {}  # of these sites
        self._sessions: dict[str, int] = {}  # of these sites, at the time of the handshake
        self._pending: dict[str, _SentHandshake] = {}  # handshakes that were not answered, by id
        self._refused: dict[int, tuple[float, int]] = {}  # nodes, with time and session of the refusal
        self._reasons: dict[int, str] = {}  # last reported reason of a refusal, by node
        self.offers: dict[str, dict[str, Any]] = {}

    # SiteLink

    def online(self) -> frozenset[str]:
        """Return the sites whose handshake is complete. Send the handshake to new nodes, but do not wait for it."""
        present = self._present_nodes()
        now = time.monotonic()  # a refused node that reconnects, or waits, may try again
        self._refused = {
            node: (refused_at, session)
            for node, (refused_at, session) in self._refused.items()
            if self._is_current(present.get(node), session) and now - refused_at < REFUSED_SECONDS
        }
        # a site that was offline repeats the handshake: it may come back with another model or other data
        lost = self.lost()
        self._nodes = {name: node for name, node in self._nodes.items() if node in present and name not in lost}
        self._collect_handshakes(present)
        known = frozenset(self._nodes.values())
        self._pending = {
            message_id: sent
            for message_id, sent in self._pending.items()
            if self._is_current(present.get(sent.node), sent.session) and sent.node not in known
        }
        asked = {sent.node for sent in self._pending.values() if now < sent.repeat_at}
        new = present.keys() - self._nodes.values() - self._refused.keys() - asked
        self._send_handshakes({node: present[node] for node in sorted(new)})
        return frozenset(self._nodes)

    def send(self, messages: Mapping[str, SiteMessage], ttl: float) -> dict[str, str]:
        contents = [
            Message(to_record_dict(message), self._nodes[name], MESSAGE_TYPE, ttl=ttl)
            for name, message in messages.items()
        ]
        return {name: id_ for name, id_ in zip(messages, self._push(contents), strict=True) if id_}

    def poll(self, message_ids: Iterable[str]) -> dict[str, SiteMessage | Failure]:
        """Return the replies that have arrived. An invalid reply becomes a failure and never raises."""
        wanted, downloader = list(message_ids), self._downloader
        if downloader is not None:
            downloads = self._retry_while_busy(lambda: downloader.poll(wanted))
            return {message_id: unwrap_reply(reply) for message_id, reply in downloads.items()}
        replies: dict[str, SiteMessage | Failure] = {}
        for message_id in wanted:  # one at a time, so that an invalid reply does not affect the others
            try:
                pulled = self._retry_while_busy(lambda id_=message_id: list(self._grid.pull_messages([id_])))  # type: ignore[misc]
            except RunError:
                raise
            except Exception as error:
                replies[message_id] = Failure("refused", f"the reply is malformed: {type(error).__name__}")
            else:
                replies.update((message_id, unwrap_reply(message)) for message in pulled)
        return replies

    def lost(self) -> frozenset[str]:
        silent = self._presence.silent()
        return frozenset(
            name
            for name, key in self._keys.items()
            if key in silent or not self._is_current(key, self._sessions[name])
        )

    def reset(self, name: str) -> None:
        self._nodes.pop(name, None)

    # handshakes

    def _present_nodes(self) -> dict[int, bytes]:
        """Return the public keys of all online nodes, without those that no longer send requests."""
        nodes = self._retry_while_busy(lambda: list(self._grid.get_nodes()))
        silent = self._presence.silent()
        return {node.node_id: bytes(node.public_key) for node in nodes if bytes(node.public_key) not in silent}

    def _retry_while_busy(self, request: Callable[[], Response]) -> Response:
        """Return the SuperLink's response. Repeat the request while the SuperLink is busy."""
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return request()
            except httpx.HTTPError as error:
                self._check_alive()
                refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
                if refused or time.monotonic() > deadline:
                    raise RunError(f"the SuperLink no longer answers: {error}") from None
                time.sleep(1.0)

    def _push(self, messages: list[Message]) -> list[str]:
        """Send messages once. Flower would refuse a repeated message that it already has."""
        if not messages:
            return []
        try:
            return list(self._grid.push_messages(messages))
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink did not accept the messages: {error}") from None

    def _is_current(self, key: bytes | None, session: int) -> bool:
        """Whether a site is still in a session. What was sent in an earlier one may have been lost with it."""
        return key is not None and self._presence.session(key) == session

    def _send_handshakes(self, nodes: Mapping[int, bytes]) -> None:
        content = [Message(to_record_dict(self._handshake), n, MESSAGE_TYPE, ttl=HANDSHAKE_SECONDS) for n in nodes]
        before = Counter(sent.node for sent in self._pending.values())
        now = time.monotonic()
        handshakes = [
            _SentHandshake(node, self._presence.session(key), now + REPEAT_SECONDS * 2 ** before[node])
            for node, key in nodes.items()
        ]
        self._pending.update(zip(self._push(content), handshakes, strict=True))

    def _collect_handshakes(self, present: Mapping[int, bytes]) -> None:
        for message_id, reply in self.poll(self._pending).items():
            sent = self._pending.pop(message_id)
            # otherwise it receives a new handshake when it comes back
            if self._is_current(present.get(sent.node), sent.session):
                self._complete_handshake(sent.node, present[sent.node], sent.session, reply)

    def _complete_handshake(self, node: int, key: bytes, session: int, reply: SiteMessage | Failure) -> None:
        registered = self._name_of_key(key) if self._name_of_key is not None else None
        if isinstance(reply, Failure):
            if reply.kind != "unavailable":  # a site that went offline may come back
                self._refuse(node, session, f"site {registered or node}: {reply.message}")
            return
        header = reply.header
        name, offer = header.get("name"), header.get("offer")
        if header.get("to") != self._handshake.digest() or not isinstance(name, str) or len(name) > MAX_TEXT:
            self._refuse(node, session, f"site {registered or node} did not answer the handshake")
        elif "refused" in header:
            self._refuse(node, session, f"site {registered or name}: {str(header['refused'])[:MAX_TEXT]}")
        elif not isinstance(offer, dict):
            self._refuse(node, session, f"site {registered or name} answered the handshake without an offer")
        elif self._name_of_key is not None and name != registered:
            self._refuse(
                node, session, f"a site calls itself {name}, but its key belongs to {registered or 'no site'}"
            )
        elif name in self.offers and self.offers[name] != offer:
            self._refuse(
                node, session, f"site {name} came back with another model or other data than it started with"
            )
        else:
            try:
                self._check_offer(name, offer)
            except PolyfedError as error:
                self._refuse(node, session, f"site {name}: {str(error)[:MAX_TEXT]}")
            except Exception as error:  # an offer may hold anything
                self._refuse(node, session, f"site {name}: its offer is not readable ({type(error).__name__})")
            else:
                self._nodes[name], self._keys[name], self._sessions[name] = node, key, session
                self.offers[name] = offer

    def _refuse(self, node: int, session: int, reason: str) -> None:
        self._refused[node] = (time.monotonic(), session)
        if self._reasons.get(node) != reason:
            self._reasons[node] = reason
            self._notify(reason)


def unwrap_reply(message: Message | Failure) -> SiteMessage | Failure:
    """Return the message of polyfed in a reply. An error or an invalid reply becomes a failure."""
    if isinstance(message, Failure):
        return message
    try:
        if message.has_error():
            kind, text = FAILURES.get(message.error.code, ("unavailable", "Flower reports an error"))
            reason = str(message.error.reason or "")[:MAX_TEXT]
            return Failure(kind, f"{text}: {reason}" if reason else text)
        return from_flower_message(message)
    except PayloadError as error:
        return Failure("refused", str(error))
    except Exception as error:  # the sender decides what it sends
        return Failure("refused", f"the reply is malformed: {type(error).__name__}")
