"""The coordinator's way to its sites: Flower's grid, with sites called by their names instead of random numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import httpx

from polyfed.core.engine import Failure
from polyfed.deploy.flower_adapter import ErrorCode, Grid, Message
from polyfed.deploy.messages import KIND, from_message, to_record
from polyfed.deploy.serverapp_task import PatientGrid
from polyfed.engines.flower import Parcel
from polyfed.errors import PayloadError, PolyfedError, RunError

HELLO_SECONDS = 120.0  # a site loads its data and builds its model before it answers
LONGEST = 600  # characters of a sentence that a site may have repeated
REFUSED_SECONDS = 60.0  # after which a site that was refused is asked again
PATIENCE = 30.0  # seconds for which a SuperLink that does not answer is asked again

# What Flower says of a message without a reply, in the words of an engine.
KINDS: dict[int, Any] = {
    ErrorCode.MESSAGE_UNAVAILABLE: ("unavailable", "the message was lost on its way"),
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: ("unavailable", "the reply was lost on its way"),
    ErrorCode.NODE_UNAVAILABLE: ("unavailable", "the site went offline"),
    ErrorCode.INVALID_FAB: ("refused", "the site refused the app of this run"),
    ErrorCode.CLIENT_APP_CRASHED: ("died", "the site's process died"),
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: ("raised", "the site's app raised an error"),
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: ("raised", "the site could not load its app"),
}

Answer = TypeVar("Answer")


class GridLink:
    """Sites by name over a grid. `name_of` gives the name that a key is registered under, where keys are used.

    `hello` is what a node is told first; its answer says who it is and what it brings, which `check` looks at (by
    name and offer; it raises an InputError). `say` is told who was refused. No reply may pass `limit` bytes.
    """

    def __init__(
        self,
        grid: Grid,
        hello: Parcel,
        name_of: Callable[[bytes], str | None] | None,
        check: Callable[[str, dict[str, Any]], None],
        say: Callable[[str], None],
        limit: int,
    ) -> None:
        self._grid = grid
        self._replies = grid.replies(limit) if isinstance(grid, PatientGrid) else None
        self._say = say
        self._hello = hello
        self._name_of = name_of
        self._check = check
        self._nodes: dict[str, int] = {}  # of the sites that have said hello
        self._greeted: dict[str, int] = {}  # greetings under way, and to whom
        self._refused: dict[int, float] = {}  # and since when
        self._said: dict[int, str] = {}  # why they were refused
        self.offers: dict[str, dict[str, Any]] = {}

    # Link

    def online(self) -> frozenset[str]:
        """Nodes that are new are greeted; nobody waits for their answers, which the next look finds."""
        here = self._present()
        now = time.monotonic()  # one that went away, or some time, may be better
        self._refused = {n: t for n, t in self._refused.items() if n in here and now - t < REFUSED_SECONDS}
        # and one that went away has to say again who it is: it may come back with another model or other data
        self._nodes = {name: node for name, node in self._nodes.items() if node in here}
        self._meet(here)
        strangers = here.keys() - self._nodes.values() - self._refused.keys() - set(self._greeted.values())
        self._greet(sorted(strangers))
        return frozenset(self._nodes)

    def send(self, parcels: Mapping[str, Parcel], seconds: float) -> dict[str, str]:
        letters = [Message(to_record(p), self._nodes[name], KIND, ttl=seconds) for name, p in parcels.items()]
        return {name: number for name, number in zip(parcels, self._push(letters), strict=True) if number}

    def replies(self, letters: Iterable[str]) -> dict[str, Parcel | Failure]:
        """Never raises for what a site sent: that is the failure of its letter."""
        wanted, ways = list(letters), self._replies
        if ways is not None:
            return {letter: opened(reply) for letter, reply in asked(lambda: ways.arrived(wanted)).items()}
        found: dict[str, Parcel | Failure] = {}
        for letter in wanted:  # one at a time, so that a bad reply spoils no other
            try:
                came = asked(lambda letter=letter: list(self._grid.pull_messages([letter])))  # type: ignore[misc]
            except RunError:
                raise
            except Exception as error:
                found[letter] = Failure("refused", f"the reply is malformed: {type(error).__name__}")
            else:
                found.update((letter, opened(message)) for message in came)
        return found

    def doubt(self, name: str) -> None:
        """A site whose memory is not what it should be is greeted again, as one that came back."""
        self._nodes.pop(name, None)

    # who is who

    def _present(self) -> dict[int, bytes]:
        nodes = asked(lambda: list(self._grid.get_nodes()))
        return {node.node_id: bytes(node.public_key) for node in nodes}

    def _push(self, letters: list[Message]) -> list[str]:
        """Not tried again: a letter that Flower has already would be refused the second time."""
        if not letters:
            return []
        try:
            return list(self._grid.push_messages(letters))
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink did not take the messages: {error}") from None

    def _greet(self, strangers: list[int]) -> None:
        letters = [Message(to_record(self._hello), node, KIND, ttl=HELLO_SECONDS) for node in strangers]
        self._greeted.update(zip(self._push(letters), strangers, strict=True))

    def _meet(self, here: Mapping[int, bytes]) -> None:
        """Who has answered the greeting by now."""
        for number, reply in self.replies(self._greeted).items():
            node = self._greeted.pop(number)
            if node in here:  # else it is greeted anew when it comes back
                self._welcome(node, here[node], reply)

    def _welcome(self, node: int, key: bytes, reply: Parcel | Failure) -> None:
        registered = self._name_of(key) if self._name_of is not None else None
        if isinstance(reply, Failure):
            if reply.kind != "unavailable":  # one that only went away may come back
                self._refuse(node, f"site {registered or node}: {reply.message}")
            return
        name, offer = reply.head.get("name"), reply.head.get("offer")
        if reply.head.get("to") != self._hello.digest() or not isinstance(name, str) or len(name) > LONGEST:
            self._refuse(node, f"site {registered or node} answered something else than the greeting")
        elif "refused" in reply.head:
            self._refuse(node, f"site {registered or name}: {str(reply.head['refused'])[:LONGEST]}")
        elif not isinstance(offer, dict):
            self._refuse(node, f"site {registered or name} said hello without an offer")
        elif self._name_of is not None and name != registered:
            self._refuse(node, f"a site calls itself {name}, but its key belongs to {registered or 'nobody'}")
        elif name in self.offers and self.offers[name] != offer:
            self._refuse(node, f"site {name} came back with another model or other data than it began with")
        else:
            try:
                self._check(name, offer)
            except PolyfedError as error:
                self._refuse(node, f"site {name}: {str(error)[:LONGEST]}")
            except Exception as error:  # of an offer that is anything at all
                self._refuse(node, f"site {name}: its offer cannot be read ({type(error).__name__})")
            else:
                self._nodes[name] = node
                self.offers[name] = offer

    def _refuse(self, node: int, why: str) -> None:
        self._refused[node] = time.monotonic()
        if self._said.get(node) != why:
            self._said[node] = why
            self._say(why)


def asked(question: Callable[[], Answer]) -> Answer:
    """What the SuperLink answers; one that is busy is asked again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return question()
        except httpx.HTTPError as error:
            gone = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
            if gone or time.monotonic() > deadline:
                raise RunError(f"the SuperLink does not answer any more: {error}") from None
            time.sleep(1.0)


def opened(message: Message | Failure) -> Parcel | Failure:
    """What a reply of Flower's holds."""
    if isinstance(message, Failure):
        return message
    try:
        if message.has_error():
            kind, words = KINDS.get(message.error.code, ("unavailable", "Flower reports an error"))
            said = str(message.error.reason or "")[:LONGEST]
            return Failure(kind, f"{words}: {said}" if said else words)
        return from_message(message)
    except PayloadError as error:
        return Failure("refused", str(error))
    except Exception as error:  # it is the sender's own making
        return Failure("refused", f"the reply is malformed: {type(error).__name__}")
