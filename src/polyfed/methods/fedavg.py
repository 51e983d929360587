"""FedAvg: communication-efficient learning of deep networks from decentralized data.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas; AISTATS 2017, Algorithm 1 (FederatedAveraging).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt

from polyfed.core import Client, Cohort, Method, Needs, Outgoing, Payload, Reply, Sends, Server, Value, register, step
from polyfed.core.client import weights_of
from polyfed.core.schema import ScalarField, WeightsField
from polyfed.core.shared_model import UpdateAggregator, apply_update, initial_weights, weights_for_clients
from polyfed.training.weight_noise import noisy


@register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    """FedAvg: clients train one common model, and the server averages their weights.

    BatchNorm statistics are averaged with the weights (`buffers: average`). Implementations that average parameters
    only keep them at each client, as `buffers: local` does. Clients are measured with the server's new model. With
    `splitting`, clients hold sub-models, and every position is averaged over the clients that hold it.

    On strongly skewed label distributions, one model for all clients is far behind local training in personal
    accuracy and far ahead in global accuracy. The same is true for all methods that derive from FedAvg.
    """

    weights: Literal["samples", "uniform"] = "samples"  # weights of clients in the mean: p_k = n_k / n, or equal
    buffers: Literal["average", "local"] = "average"  # BatchNorm statistics: averaged, or kept at each client
    server_lr: Annotated[float, Gt(0)] = 1.0  # step size of the server along the mean update of the parameters
    upload_noise: Annotated[float, Ge(0)] = 0.0  # Gaussian noise on uploads, in standard deviations of the update

    verdict = (
        "The baseline for one common model: high global accuracy, but personal accuracy suffers when labels "
        "are skewed."
    )
    needs = Needs(same_architecture=True)
    sends = Sends(
        up="all weights of the model, and the number of samples",
        down="all weights of the model",
        kinds=("weights", "counts"),
    )
    averaged: ClassVar[tuple[str, ...]] = ("model",)
    one_model = True

    def mean_weights(self) -> Mapping[str, str]:
        return {"model": "samples" if self.weights == "samples" else ""}

    def init(self, server: Server) -> None:
        server.state["model"] = initial_weights(server)

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        updates = UpdateAggregator(server, model)
        for k, reply in cohort.stream(self.train, out=weights_for_clients(server, cohort.ids, model=model)):
            updates.add(k, reply.weights("model"), self.weight(reply), times=self.server_lr)
        server.state["model"] = apply_update(server, model, updates.mean())  # theta + sum_k p_k (theta_k - theta)

    @step(
        down={"model": WeightsField()}, up={"model": WeightsField(), "samples": ScalarField(least=0, most="samples")}
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        self.receive(client, msg)
        self.learn(client)
        return self.upload(client, msg)

    def weight(self, reply: Payload) -> float:
        """Return the weight of a client in the mean: n_k, or 1."""
        return reply.number("samples") if self.weights == "samples" else 1.0

    def receive(self, client: Client, msg: Payload) -> None:
        """Load the received weights into the client's model."""
        received = msg.weights("model")
        if self.buffers == "local":
            received |= {name: buffer for name, buffer in client.model.named_buffers() if name in received}
        client.load(received)

    def learn(self, client: Client) -> None:
        """Train the client's model on its data."""
        client.fit()

    def upload(self, client: Client, msg: Payload) -> dict[str, Value]:
        """Return the trained weights and the number of samples."""
        trained = weights_of(client.model)
        if self.upload_noise:
            names = [name for name, _ in client.model.named_parameters()]
            trained = noisy(trained, msg.weights("model"), names, self.upload_noise, client.stream("upload noise"))
        return {"model": trained, "samples": len(client.train)}

    def publish(self, server: Server) -> Outgoing:
        clients = [profile.name for profile in server.roster]
        return weights_for_clients(server, clients, model=server.memory.weights("model"))

    def adopt(self, client: Client, msg: Payload) -> None:
        self.receive(client, msg)

    def predicts_from_published(self) -> bool:
        return self.buffers == "average"
