"""The coordinator's way to its sites: Flower's grid, with sites called by their names instead of random numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import httpx
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp.grid import Grid

from polyfed.core.engine import Failure
from polyfed.deploy.letters import KIND, from_message, to_record
from polyfed.engines.flower import Parcel
from polyfed.errors import PayloadError, RunError

HELLO_SECONDS = 120.0  # a site loads its data and builds its model before it answers
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

    `hello` is what a node is told first; its answer says who it is and what it brings. `say` is told who was refused.
    """

    def __init__(
        self,
        grid: Grid,
        hello: Parcel,
        name_of: Callable[[bytes], str | None] | None,
        say: Callable[[str], None],
    ) -> None:
        self._grid = grid
        self._say = say
        self._hello = hello
        self._name_of = name_of
        self._nodes: dict[str, int] = {}  # of the sites that have said hello
        self._greeted: dict[str, int] = {}  # greetings under way, and to whom
        self._refused: set[int] = set()
        self.offers: dict[str, dict[str, Any]] = {}

    # Link

    def online(self) -> frozenset[str]:
        """Nodes that are new are greeted; nobody waits for their answers, which the next look finds."""
        here = self._present()
        self._refused &= here.keys()  # one that went away may come back better
        self._meet(here)
        strangers = here.keys() - self._nodes.values() - self._refused - set(self._greeted.values())
        self._greet(sorted(strangers))
        return frozenset(name for name, node in self._nodes.items() if node in here)

    def send(self, parcels: Mapping[str, Parcel], seconds: float) -> dict[str, str]:
        letters = [Message(to_record(p), self._nodes[name], KIND, ttl=seconds) for name, p in parcels.items()]
        return {name: number for name, number in zip(parcels, self._push(letters), strict=True) if number}

    def replies(self, letters: Iterable[str]) -> dict[str, Parcel | Failure]:
        wanted = list(letters)
        if not wanted:
            return {}
        came = asked(lambda: list(self._grid.pull_messages(wanted)))
        return {message.metadata.reply_to_message_id: opened(message) for message in came}

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
        if reply.head.get("to") != self._hello.digest() or not isinstance(name, str):
            self._refuse(node, f"site {registered or node} answered something else than the greeting")
        elif "refused" in reply.head:
            self._refuse(node, f"site {registered or name}: {reply.head['refused']}")
        elif not isinstance(offer, dict):
            self._refuse(node, f"site {registered or name} said hello without an offer")
        elif self._name_of is not None and name != registered:
            self._refuse(node, f"a site calls itself {name}, but its key belongs to {registered or 'nobody'}")
        elif name in self.offers and self.offers[name] != offer:
            self._refuse(node, f"site {name} came back with another model or other data than it began with")
        else:
            self._nodes[name] = node
            self.offers[name] = offer

    def _refuse(self, node: int, why: str) -> None:
        self._refused.add(node)
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


def opened(message: Message) -> Parcel | Failure:
    """What a reply of Flower's holds."""
    if message.has_error():
        kind, words = KINDS.get(message.error.code, ("unavailable", "Flower reports an error"))
        said = message.error.reason or ""
        return Failure(kind, f"{words}: {said}" if said else words)
    try:
        return from_message(message)
    except PayloadError as error:
        return Failure("refused", str(error))
