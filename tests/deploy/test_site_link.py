"""The coordinator's link to its sites: which of the nodes that Flower lists are still there."""

from __future__ import annotations

from collections.abc import Iterable

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


def test_sites_that_send_no_requests_are_lost_with_and_without_keys() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    for name_of_key in (None, lambda key: NODES[int(key[-1:])]):
        contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in (1, 2)}
        silent: set[bytes] = set()
        link = GridLink(
            Nodes(app, contexts),
            SiteMessage({"do": "hello"}),
            name_of_key,
            lambda name, offer: None,
            lambda text: None,
            1000,
            lambda silent=silent: frozenset(silent),  # type: ignore[misc]
        )
        assert link.online() == frozenset()  # handshakes have been sent
        assert link.online() == {"ana", "ben"} and link.lost() == frozenset()
        silent.add(b"key 2")
        assert link.lost() == {"ben"} and link.online() == {"ana"}
        contexts[3] = Context(1, 3, {}, RecordDict(), {})
        assert link.online() == {"ana"}
        assert link.online() == {"ana", "ben"} and link.lost() == frozenset()
