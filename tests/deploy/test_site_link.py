"""The coordinator's link to its sites: which of the nodes that Flower lists are still there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest
from tests.deploy.flower_names import NodeInfo
from tests.deploy.test_flower_export import LocalGrid

from polyfed.deploy.flower_adapter import ClientApp, Context, Message, RecordDict, TaskIdentity
from polyfed.deploy.messages import from_flower_message, to_record_dict
from polyfed.deploy.site_link import GridLink
from polyfed.engines.flower import SiteMessage

NODES = {1: "ana", 2: "ben", 3: "ben"}  # the third one is ben after a restart
app = ClientApp()


@app.query("polyfed")
def answer(message: Message, context: Context) -> Message:
    digest = from_flower_message(message).digest()
    reply = SiteMessage({"to": digest, "name": NODES[context.node_id], "offer": {}})
    return Message(to_record_dict(reply), reply_to=message)


class Nodes(LocalGrid):
    """A grid whose nodes have public keys. Flower keeps listing nodes that have gone."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=number, public_key=b"key %d" % number) for number in self._contexts]


class Gateway:
    """What a gateway has seen of sites."""

    def __init__(self) -> None:
        self.silent_keys: set[bytes] = set()
        self.sessions: dict[bytes, int] = {}

    def silent(self) -> frozenset[bytes]:
        return frozenset(self.silent_keys)

    def session(self, key: bytes) -> int:
        return self.sessions.get(key, 0)


def make_link(
    contexts: dict[int, Context],
    gateway: Gateway,
    name_of_key: Callable[[bytes], str | None] | None,
    notify: Callable[[str], None] = lambda text: None,
) -> GridLink:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return GridLink(
        Nodes(app, contexts),
        SiteMessage({"do": "hello"}),
        name_of_key,
        lambda name, offer: None,
        notify,
        1000,
        gateway,
    )


def node_contexts(*nodes: int) -> dict[int, Context]:
    return {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}


@pytest.mark.parametrize("name_of_key", [None, lambda key: NODES[int(key[-1:])]], ids=["no keys", "keys"])
def test_sites_that_send_no_requests_are_lost(name_of_key: Callable[[bytes], str | None] | None) -> None:
    contexts, gateway = node_contexts(1, 2), Gateway()
    link = make_link(contexts, gateway, name_of_key)
    assert link.online() == frozenset()  # handshakes have been sent
    assert link.online() == {"ana", "ben"} and link.lost() == frozenset()
    gateway.silent_keys.add(b"key 2")
    assert link.lost() == {"ben"} and link.online() == {"ana"}
    contexts.update(node_contexts(3))
    assert link.online() == {"ana"}
    assert link.online() == {"ana", "ben"} and link.lost() == frozenset()


def test_a_handshake_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    link = make_link(node_contexts(1, 2), Gateway(), None)
    grid = link._grid
    assert isinstance(grid, Nodes)
    sent: list[int] = []  # nodes
    push, pull = grid.push_messages, grid.pull_messages

    def count(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        sent.extend(message.metadata.dst_node_id for message in messages)
        return push(messages)

    def lose_second(ids: Iterable[str]) -> Iterable[Message]:
        return [reply for reply in pull(ids) if reply.metadata.src_node_id != 2 or len(sent) > 3]

    monkeypatch.setattr(grid, "push_messages", count)
    monkeypatch.setattr(grid, "pull_messages", lose_second)
    assert link.online() == frozenset() and sent == [1, 2]
    assert link.online() == {"ana"} and sent == [1, 2]
    for seconds, handshakes in [(9, 0), (10, 1), (29, 0), (30, 1)]:  # then after 10 and 20 more
        before, clock[0] = len(sent), float(seconds)
        link.online()
        assert sent[before:] == [2] * handshakes
    assert link.online() == {"ana", "ben"}
    clock[0] = 1000.0
    assert link.online() == {"ana", "ben"} and len(sent) == 4


def test_a_site_that_has_connected_again_repeats_the_handshake() -> None:
    """Its last message may be lost, whether or not the site was ever silent for long."""
    gateway = Gateway()
    link = make_link(node_contexts(1, 2), gateway, lambda key: NODES[int(key[-1:])])
    link.online()
    gateway.sessions[b"key 1"] = 7  # before its handshake is complete: another one is sent
    assert link.online() == {"ben"}
    assert link.online() == {"ana", "ben"} and link.lost() == frozenset()
    gateway.sessions[b"key 2"] = 8
    assert link.lost() == {"ben"}
    assert link.online() == {"ana"}
    assert link.online() == {"ana", "ben"} and link.lost() == frozenset()


def test_a_refused_site_that_has_connected_again_is_asked_again() -> None:
    gateway, notices = Gateway(), list[str]()
    link = make_link(node_contexts(1), gateway, lambda key: "another site", notices.append)
    assert link.online() == frozenset() and link.online() == frozenset()
    assert notices == ["a site calls itself ana, but its key belongs to another site"]
    assert not link._pending and link.online() == frozenset() and not link._pending  # it is not asked again at once
    gateway.sessions[b"key 1"] = 5
    link.online()
    assert len(link._pending) == 1
