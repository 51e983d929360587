"""From teachers to students: which outputs are usable, and which teachers each student learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from polyfed.core import Payload, Server
from polyfed.methods.dffke.messages import Messages
from polyfed.methods.dffke.records import record_peer_bytes
from polyfed.methods.dffke.replay_index import RowCounts, replay_rows


@dataclass(frozen=True)
class TeacherOutputs:
    """The replies of a round's teachers, and the images that these outputs belong to."""

    replies: Mapping[str, Payload]
    rows: Mapping[str, int]  # images of each teacher in this round
    replayed: Mapping[str, RowCounts]  # images of each teacher in the past rounds that it labelled again
    turns: int  # of the exchange

    def complete(self, batch: int) -> dict[str, Payload]:
        """Return the replies with one output per image; students cannot use the others."""
        return {
            name: reply
            for name, reply in self.replies.items()
            if _length(reply, "targets") == self.rows.get(name)
            and _length(reply, "memory") == replay_rows(self.replayed.get(name, {}), self.turns, batch)
        }


def student_messages(
    server: Server, students: tuple[str, ...], outputs: TeacherOutputs | None, *, batch: int, teachers: int | None
) -> Messages:
    """Return for every student the outputs of all other clients, or of `teachers` of them drawn at random."""
    if outputs is None:
        return {}
    complete = outputs.complete(batch)
    fields = list(dict.fromkeys(field for reply in complete.values() for field in reply))
    each: Messages = {}
    for student in students:
        others = [name for name in complete if name != student]
        if teachers is not None:
            chosen = torch.randperm(len(others), generator=server.stream(f"teachers {student}"))[:teachers]
            others = [others[k] for k in sorted(chosen.tolist())]
        if others:
            sent = {field: {n: complete[n][field] for n in others if field in complete[n]} for field in fields}
            review = {name: outputs.replayed[name] for name in others if outputs.replayed.get(name)}
            each[student] = {"turns": outputs.turns, **{k: v for k, v in {**sent, "review": review}.items() if v}}
    record_peer_bytes(server, each, fields)
    return each


def _length(reply: Payload, field: str) -> int:
    return len(reply.tensor(field)) if field in reply else 0
