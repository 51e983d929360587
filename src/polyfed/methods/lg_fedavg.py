"""LG-FedAvg: think locally, act globally.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency; arXiv 2001.01523, 2020, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import functional_call

from polyfed.core import Client, Cohort, Method, Needs, Outgoing, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of
from polyfed.core.schema import ScalarField, WeightsField


@register("lg-fedavg")
@dataclass(frozen=True)
class LGFedAvg(Method):
    """LG-FedAvg: every client has its own feature extractor, and the server averages the heads.

    The paper shares the last layers and starts from a trained FedAvg model. Here only the head is shared, from random
    weights, as in papers that compare with LG-FedAvg. The released code averages uniformly (`weights: uniform`). A
    client that does not take part in a round keeps its head.

    Clients are measured with the averaged head of the round, as the authors do. The accuracy "by local head" is that
    of the same models with the heads that the clients have trained, which is usually higher on their own data.
    Results: docs/leaderboard.md.
    """

    weights: Literal["samples", "uniform"] = "samples"  # weights of clients in the mean: by samples, or equal

    verdict = "A shared head costs few bytes; level with local training or slightly above after enough rounds."
    needs = Needs(same_head=True, same_features=True)
    sends = Sends(
        up="weights of the head, and the number of samples",
        down="weights of the head",
        kinds=("head", "counts"),
    )
    averaged = ("head",)

    def mean_weights(self) -> Mapping[str, str]:
        return {"head": "samples" if self.weights == "samples" else ""}

    def init(self, server: Server) -> None:
        server.state["head"] = weights_of(server.build(server.roster[0].spec).head)

    def round(self, server: Server, cohort: Cohort) -> None:
        mean = WeightedMean(server.aggregation)
        for _, reply in cohort.stream(self.train, shared={"head": server.state["head"]}):
            mean.add(reply.weights("head"), reply.number("samples") if self.weights == "samples" else 1.0)
        server.state["head"] = mean.result(server.memory.weights("head"))  # h <- sum_k p_k h_k

    @step(
        down={"head": WeightsField("head")},
        up={"head": WeightsField("head"), "samples": ScalarField(least=0, most="samples")},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(msg.weights("head"), into=client.model.head)
        client.fit()
        return {"head": weights_of(client.model.head), "samples": len(client.train)}

    def publish(self, server: Server) -> Outgoing:
        return Outgoing({"head": server.state["head"]})

    def adopt(self, client: Client, msg: Payload) -> None:
        adopt_head(client, msg)

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"local head": predict_with_local_head}


def adopt_head(client: Client, msg: Payload) -> None:
    """Load a published head for an evaluation, and keep the client's own one for `predict_with_local_head`."""
    client.state["local head"] = weights_of(client.model.head)
    client.load(msg.weights("head"), into=client.model.head)


def predict_with_local_head(client: Client, x: Tensor) -> Tensor:
    """Return the logits of the client's own head."""
    head = client.memory.weights("local head")
    logits: Tensor = functional_call(client.model.head, head, (client.model.features(x),))
    return logits
