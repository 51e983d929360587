"""Template of a method and its test, for `polyfed new method`."""

METHOD = '''\
"""@CLASS@: describe the method in one sentence.

Authors; title; venue and year; which algorithm of the paper this file implements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from annotated_types import Ge
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
    """@CLASS@: clients share their mean output per class and regularise towards the mean over clients.

    Deviations: list the differences from the paper.
    """

    # Fields are hyperparameters (`method.guidance=0.5` on the command line); bounds in their types are checked.
    guidance: Annotated[float, Ge(0)] = 1.0  # weight of the regulariser

    # `needs` is checked for all clients before round 1; `sends` describes the messages for users. `kinds` are names
    # of `polyfed list uploads`, for `polyfed advise`.
    needs = Needs(same_classes=True)
    sends = Sends(
        up="mean output per class, with counts",
        down="mean output per class over all clients",
        kinds=("class-outputs", "counts"),
    )

    def init(self, server: Server) -> None:
        # Called once, before round 1. Keep all state in `server.state`: checkpoints save it.
        server.state["outputs"] = ClassTable.empty(server.classes).without_counts()

    def round(self, server: Server, cohort: Cohort) -> None:
        # The first argument tells where code runs: `server` here, `client` below. `cohort.call` is the only way from
        # the server to the clients: it runs a step at every client of the round and returns the replies in client
        # order.
        outputs = server.memory.table("outputs")
        replies = cohort.call(self.train, shared={"outputs": outputs})
        tables = [reply.table("outputs") for reply in replies.values()]
        means = mean_over_clients(tables, width=server.classes, by_count=True)
        server.state["outputs"] = outputs.updated(means)  # a class without replies keeps its row

    # A step declares the fields that it receives and returns. Messages with other fields are rejected.
    @step(down={"outputs": TableField("classes")}, up={"outputs": TableField("classes", counts=True)})
    def train(self, client: Client, msg: Payload) -> Reply:
        target, has_row = msg.table("outputs").dense(client.classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            logits = client.model(x)
            distance = F.mse_loss(logits, target[y], reduction="none").mean(1)
            regulariser = (distance * has_row[y]).sum() / has_row[y].sum().clamp(min=1)  # classes with a row only
            return F.cross_entropy(logits, y), self.guidance * regulariser

        client.fit(loss)
        return {"outputs": client.class_means(client.model, client.classes)}
'''

TEST = '''\
"""The battery of checks for every method, on @CLASS@."""

from __future__ import annotations

import pytest
from @MODULE@ import @CLASS@
from polyfed.testing import checks, run_check


@pytest.mark.parametrize("check", checks())
def test_battery(check: str) -> None:
    run_check(check, @CLASS@)
'''
