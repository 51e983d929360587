"""LG-FedAvg: think locally, act globally.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency; arXiv 2001.01523, 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of
from polyfed.core.schema import ScalarField, WeightsField


@register("lg-fedavg")
@dataclass(frozen=True)
class LGFedAvg(Method):
    """LG-FedAvg: every client keeps its own extractor, the heads are averaged.

    The paper shares the last layers and starts from a trained FedAvg model; here the head alone is shared, from
    scratch, as in the papers that compare with it. The released code averages uniformly (`weights: uniform`). Only
    clients of the round exchange: an idle client keeps its head. A head's rows of classes that a client does not
    have are pushed down by its training and enter the mean; that is the method.
    """

    weights: Literal["samples", "uniform"] = "samples"  # how clients count in the mean

    needs = Needs(same_head=True, same_features=True)
    sends = Sends(up="weights of the head, and the number of samples", down="weights of the head")

    def init(self, server: Server) -> None:
        server.state["head"] = weights_of(server.build(server.roster[0].spec).head)

    def round(self, server: Server, cohort: Cohort) -> None:
        mean = WeightedMean()
        for _, got in cohort.stream(self.train, shared={"head": server.state["head"]}):
            mean.add(got.weights("head"), got.number("samples") if self.weights == "samples" else 1.0)
        server.state["head"] = mean.result(server.memory.weights("head"))  # h <- sum_k p_k h_k

    @step(down={"head": WeightsField("head")}, up={"head": WeightsField("head"), "samples": ScalarField(least=0)})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(msg.weights("head"), into=client.model.head)
        client.fit()
        return {"head": weights_of(client.model.head), "samples": len(client.train)}
