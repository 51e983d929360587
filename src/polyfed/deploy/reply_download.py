"""Replies of sites, taken from the SuperLink piece by piece.

Flower's own way waits for the last piece of a reply before it looks at the next one, and raises what any of them
makes it raise. Here nothing is waited for, and what is wrong with a reply is the failure of its sender alone.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx

from polyfed.core.engine import Failure
from polyfed.deploy.flower_adapter import (
    Message,
    Node,
    ObjectPullError,
    ObjectTree,
    ObjectUnavailableError,
    PullAppMessagesRequest,
    RuntimeHttpClient,
    get_object_body,
    get_object_head_values_from_object_content,
    inflatable_class_registry,
    inflate_object_from_contents,
    iterate_object_tree,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from polyfed.errors import PayloadError

MOST_PIECES = 100_000  # of one reply; Flower cuts at 5 MiB
FORGOTTEN_SECONDS = 900.0  # a reply that nobody asked for in so long is given up
HEAD_BYTES = 1 << 20  # what a reply may hold besides its payload


@dataclass
class _Coming:
    """A reply that is known of, and those of its pieces that are here."""

    number: str  # its own, not that of the letter it answers
    missing: list[str]
    asked: float
    pieces: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class Replies:
    """Replies by the number of the letter they answer, over `client`; none may be larger than `limit` bytes."""

    def __init__(self, client: RuntimeHttpClient, node: Node, run: int, limit: int) -> None:
        self._client = client
        self._limit = limit + HEAD_BYTES
        self._coming: dict[str, _Coming] = {}
        self._piece = make_pull_object_fn_protobuf(client.PullObject, node, run)
        self._confirm = make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run)

    def arrived(self, letters: Iterable[str]) -> dict[str, Message | Failure]:
        """Those that are whole by now, or will never be. Nothing is waited for."""
        wanted = list(letters)
        self._look([letter for letter in wanted if letter not in self._coming])
        now = time.monotonic()
        found: dict[str, Message | Failure] = {}
        for letter in wanted:
            coming = self._coming.get(letter)
            if coming is not None:
                coming.asked = now
                self._collect(letter, coming, found)
        for letter, coming in list(self._coming.items()):
            if now - coming.asked > FORGOTTEN_SECONDS:
                del self._coming[letter]
        return found

    def _look(self, letters: list[str]) -> None:
        """Which replies there are. The letter is the one that the SuperLink names, whatever the reply says itself."""
        if not letters:
            return
        got = self._client.PullMessages(PullAppMessagesRequest(message_ids=letters))
        for head, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            letter = head.metadata.reply_to_message_id
            if letter in letters:
                self._coming[letter] = _Coming(head.metadata.message_id, _pieces_of(tree), time.monotonic())

    def _collect(self, letter: str, coming: _Coming, found: dict[str, Message | Failure]) -> None:
        try:
            if not self._whole(coming):
                return
            found[letter] = _message(coming, self._limit)
        except PayloadError as error:
            found[letter] = Failure("refused", str(error))
        except ObjectPullError:
            found[letter] = Failure("unavailable", "the reply was lost on its way")
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:  # the SuperLink's own trouble, not this reply's
                raise
            found[letter] = Failure("refused", f"a part of the reply is refused: {error.response.status_code}")
        except httpx.HTTPError:
            raise
        except Exception as error:  # whatever Flower's reading of it meets
            found[letter] = Failure("refused", f"the reply is malformed: {type(error).__name__}")
        del self._coming[letter]
        with contextlib.suppress(httpx.HTTPError):
            self._confirm(coming.number)

    def _whole(self, coming: _Coming) -> bool:
        """Whether all of it is here, after taking what there is."""
        if len(coming.missing) > MOST_PIECES:
            raise PayloadError(f"the reply has {len(coming.missing)} pieces; {MOST_PIECES} are allowed")
        while coming.missing:
            try:
                piece = self._piece(coming.missing[-1])
            except ObjectUnavailableError:
                return False
            coming.pieces[coming.missing.pop()] = piece
            coming.size += len(piece)
            if coming.size > self._limit:
                raise PayloadError(f"the reply is larger than the {self._limit} bytes allowed")
        return True


def _pieces_of(tree: ObjectTree) -> list[str]:
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def _message(coming: _Coming, limit: int) -> Message:
    if _expanded(coming.pieces) > limit:
        raise PayloadError(f"the reply is larger than the {limit} bytes allowed, as its pieces are repeated")
    message = inflate_object_from_contents(coming.number, coming.pieces)
    if not isinstance(message, Message):
        raise PayloadError("the reply is malformed: it is no message")
    return message


def _expanded(pieces: dict[str, bytes]) -> int:
    """How long the arrays of a reply are in all: they may name the same piece as often as they like."""
    total = 0
    for content in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == "Array":
            named = json.loads(get_object_body(content, inflatable_class_registry[kind]))["arraychunk_ids"]
            total += sum(len(pieces[children[at]]) for at in named)
    return total
