"""FedAvg: communication-efficient learning of deep networks from decentralized data.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas; AISTATS 2017, Algorithm 1 (FederatedAveraging).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyfed.core import (
    Client,
    Cohort,
    Method,
    Needs,
    Outgoing,
    Payload,
    Reply,
    Scalar,
    Sends,
    Server,
    Weights,
    register,
    step,
)
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of


@register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    """FedAvg: clients train one common model, the server averages their weights.

    BatchNorm statistics are averaged with the weights (`buffers: average`); implementations that walk over
    parameters only keep them at each client, which `buffers: local` does. The server's model is what is evaluated.
    """

    weights: Literal["samples", "uniform"] = "samples"  # how clients count in the mean (p_k, or all alike)
    buffers: Literal["average", "local"] = "average"  # BatchNorm statistics: averaged, or each client's own

    needs = Needs(same_architecture=True)
    sends = Sends(up="all weights of the model, and the number of samples", down="all weights of the model")

    def init(self, server: Server) -> None:
        server.state["model"] = weights_of(server.build(server.roster[0].spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        mean = WeightedMean()
        for _, got in cohort.stream(self.train, shared={"model": server.state["model"]}):
            mean.add(got.weights("model"), got.number("samples") if self.weights == "samples" else 1.0)
        server.state["model"] = mean.result(server.memory.weights("model"))  # theta <- sum_k p_k theta_k

    @step(down={"model": Weights()}, up={"model": Weights(), "samples": Scalar(least=0)})
    def train(self, client: Client, msg: Payload) -> Reply:
        self.adopt(client, msg)
        client.fit()
        return {"model": weights_of(client.model), "samples": len(client.train)}

    def publish(self, server: Server) -> Outgoing:
        return Outgoing(shared={"model": server.state["model"]})

    def adopt(self, client: Client, msg: Payload) -> None:
        received = msg.weights("model")
        if self.buffers == "local":
            received |= {name: own for name, own in client.model.named_buffers() if name in received}
        client.load(received)
