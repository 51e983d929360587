"""The text of a first method and of its test."""

METHOD = '''\
"""@CLASS@: say here what the method is.

Authors; where it was published, and which algorithm of it this is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Needs,
    Payload,
    Reply,
    Sends,
    Server,
    TableField,
    register,
    step,
)
from polyfed.core.class_tables import mean_over_clients
from torch import Tensor


@register("@NAME@")
@dataclass(frozen=True)
class @CLASS@(Method):
    """@CLASS@: clients share the mean output of their model per class, and stay close to everybody's mean.

    Deviations: say here what differs from the paper.
    """

    # Fields are hyperparameters: `method.guidance=0.5` on the command line. There is no other state in a method.
    guidance: float = 1.0  # weight of the pull

    # Needs are checked for all clients before round 1; Sends says in words what crosses.
    needs = Needs(same_classes=True)
    sends = Sends(up="mean output per class, with counts", down="mean output per class over all clients")

    def init(self, server: Server) -> None:
        # Once, before round 1. `server.state` is all that the server remembers, and what a checkpoint saves.
        server.state["outputs"] = ClassTable.empty(server.classes).without_counts()

    def round(self, server: Server, cohort: Cohort) -> None:
        # The first argument says where a line runs: `server` here, `client` below. `cohort.call` is the only door
        # between them: it runs a step at every client of the round and gives the replies in client order.
        known = server.memory.table("outputs")
        replies = cohort.call(self.train, shared={"outputs": known})
        tables = [reply.table("outputs") for reply in replies.values()]
        fresh = mean_over_clients(tables, width=server.classes, by_count=True)
        server.state["outputs"] = known.updated(fresh)  # a class that nobody reported keeps its row

    # A step declares what it receives and answers; anything else is refused before it is read.
    @step(down={"outputs": TableField("classes")}, up={"outputs": TableField("classes", counts=True)})
    def train(self, client: Client, msg: Payload) -> Reply:
        target, known = msg.table("outputs").dense(client.classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = client.model(x)
            apart = F.mse_loss(z, target[y], reduction="none").mean(1)
            pull = (apart * known[y]).sum() / known[y].sum().clamp(min=1)  # only classes that have a row
            return F.cross_entropy(z, y), self.guidance * pull

        client.fit(loss)
        return {"outputs": client.class_means(client.model, client.classes)}
'''

TEST = '''\
"""The battery that every method passes, on @CLASS@."""

from __future__ import annotations

import pytest
from @STEM@ import @CLASS@
from polyfed.testing import checks, run_check


@pytest.mark.parametrize("check", checks())
def test_battery(check: str) -> None:
    run_check(check, @CLASS@)
'''
