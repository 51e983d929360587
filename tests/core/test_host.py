"""The client side of every engine: what a client keeps between steps, and in which mode its model is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from polyfed.core import Client, Cohort, Method, Payload, Reply, Scalar, Sends, Server, Weights, register, step
from polyfed.core.client import weights_of
from polyfed.testing.lab import Lab


@register("toy-hoard")
@dataclass(frozen=True)
class Hoard(Method):
    """Keeps live references in its state, and alters them later: what R2 warns of."""

    sends = Sends(up="nothing", down="all weights")
    needs = replace(Method.needs, same_architecture=True)

    def init(self, server: Server) -> None:
        server.state["model"] = weights_of(server.build(server.roster[0].spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.keep, shared={"model": server.state["model"]})
        cohort.call(self.alter)

    @step(down={"model": Weights()})
    def keep(self, client: Client, msg: Payload) -> None:
        client.state["received"] = msg["model"]
        client.state["live"] = dict(client.model.state_dict())
        client.state["graph"] = client.model(torch.ones(2, 1, 8, 8)).sum()

    @step()
    def alter(self, client: Client, msg: Payload) -> None:
        client.fit()
        for tensor in client.memory.weights("received").values():
            tensor.add_(int(client.name))


def test_what_a_client_keeps_is_its_own_copy() -> None:
    with Lab(Hoard, {}) as lab:
        roomy, tight = lab.run().whole(), lab.run(memory=1).whole()
    assert roomy.hash == tight.hash


@register("toy-mood")
@dataclass(frozen=True)
class Mood(Method):
    """Looks at its model without saying in which mode."""

    sends = Sends(up="numbers", down="nothing")
    needs = replace(Method.needs, same_architecture=True)

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.look)

    @step(up={"training": Scalar("flag")})
    def look(self, client: Client, msg: Payload) -> Reply:
        training = client.model.training
        client.model(torch.ones(2, 1, 8, 8))
        return {"training": training}


def test_a_step_always_finds_its_model_in_the_same_mode() -> None:
    with Lab(Mood, {}) as lab:
        assert len({lab.run().hash, lab.run(evaluate=True).hash, lab.run(memory=1, evaluate=True).hash}) == 1
