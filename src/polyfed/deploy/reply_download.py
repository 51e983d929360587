"""Download of sites' replies from the SuperLink, piece by piece.

Flower's own download waits for the last piece of a reply before it turns to the next reply, and raises the errors of
all of them. This one never waits, and an invalid reply is a failure of its sender alone.
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

MAX_PIECES = 100_000  # of one reply; a piece has up to 5 MiB
EXPIRY_SECONDS = 900.0  # after which a reply that is no longer polled for is dropped
HEADER_BYTES = 1 << 20  # that a reply may have in addition to its payload


@dataclass
class _PartialReply:
    """A reply that has been announced, and the pieces of it that have been downloaded."""

    message_id: str  # of the reply, not of the message that it answers
    missing: list[str]
    last_polled: float
    pieces: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class ReplyDownloader:
    """Downloads replies, which are identified by the message they answer. A reply may have up to `limit` bytes."""

    def __init__(self, client: RuntimeHttpClient, node: Node, run: int, limit: int) -> None:
        self._client = client
        self._limit = limit + HEADER_BYTES
        self._partial: dict[str, _PartialReply] = {}
        self._pull_piece = make_pull_object_fn_protobuf(client.PullObject, node, run)
        self._confirm = make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run)

    def poll(self, message_ids: Iterable[str]) -> dict[str, Message | Failure]:
        """Return the replies that are complete, and failures for those that never will be. Do not wait."""
        wanted = list(message_ids)
        self._find_new([message_id for message_id in wanted if message_id not in self._partial])
        now = time.monotonic()
        replies: dict[str, Message | Failure] = {}
        for message_id in wanted:
            partial = self._partial.get(message_id)
            if partial is not None:
                partial.last_polled = now
                self._collect(message_id, partial, replies)
        for message_id, partial in list(self._partial.items()):
            if now - partial.last_polled > EXPIRY_SECONDS:
                del self._partial[message_id]
        return replies

    def _find_new(self, message_ids: list[str]) -> None:
        """Ask which replies have been announced.

        The SuperLink says which message a reply answers; what the reply itself claims does not count.
        """
        if not message_ids:
            return
        response = self._client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        for header, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            message_id = header.metadata.reply_to_message_id
            if message_id in message_ids:
                self._partial[message_id] = _PartialReply(
                    header.metadata.message_id, _piece_ids(tree), time.monotonic()
                )

    def _collect(self, message_id: str, partial: _PartialReply, replies: dict[str, Message | Failure]) -> None:
        try:
            if not self._download(partial):
                return
            replies[message_id] = _assemble(partial, self._limit)
        except PayloadError as error:
            replies[message_id] = Failure("refused", str(error))
        except ObjectPullError:
            replies[message_id] = Failure("unavailable", "the reply was lost in transit")
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:  # a problem of the SuperLink, not of this reply
                raise
            replies[message_id] = Failure(
                "refused", f"the SuperLink refused a part of the reply: {error.response.status_code}"
            )
        except httpx.HTTPError:
            raise
        except Exception as error:  # Flower's parser may raise anything
            replies[message_id] = Failure("refused", f"the reply is malformed: {type(error).__name__}")
        del self._partial[message_id]
        with contextlib.suppress(httpx.HTTPError):
            self._confirm(partial.message_id)

    def _download(self, partial: _PartialReply) -> bool:
        """Download the pieces that are available. Return whether the reply is complete."""
        if len(partial.missing) > MAX_PIECES:
            raise PayloadError(f"the reply has {len(partial.missing)} pieces; {MAX_PIECES} are allowed")
        while partial.missing:
            try:
                piece = self._pull_piece(partial.missing[-1])
            except ObjectUnavailableError:
                return False
            partial.pieces[partial.missing.pop()] = piece
            partial.size += len(piece)
            if partial.size > self._limit:
                raise PayloadError(f"the reply is larger than the {self._limit} bytes allowed")
        return True


def _piece_ids(tree: ObjectTree) -> list[str]:
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def _assemble(partial: _PartialReply, limit: int) -> Message:
    if _expanded_size(partial.pieces) > limit:
        raise PayloadError(f"the reply is larger than the {limit} bytes allowed, because it repeats pieces")
    message = inflate_object_from_contents(partial.message_id, partial.pieces)
    if not isinstance(message, Message):
        raise PayloadError("the reply is malformed: it is not a message")
    return message


def _expanded_size(pieces: dict[str, bytes]) -> int:
    """Return the total size of a reply's arrays. An array may name the same piece many times."""
    total = 0
    for content in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == "Array":
            indices = json.loads(get_object_body(content, inflatable_class_registry[kind]))["arraychunk_ids"]
            total += sum(len(pieces[children[index]]) for index in indices)
    return total
