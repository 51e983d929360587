"""Docking layers: one linear layer per client that maps its embeddings into a common space (Eq. 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import Client, Payload, Server, rng
from polyfed.core.client import copy_into, weights_of
from polyfed.core.payload import view
from polyfed.methods.dffke.messages import subtree
from polyfed.training.fit import TrainSettings, make_optimizer

WEIGHT_DECAY = 0.001  # of docking layers and head, as in the released code


@dataclass(frozen=True)
class ClientSnapshot:
    """A client's uploaded model at the server, frozen and in evaluation mode, and the rest of its upload."""

    encoder: nn.Module  # h_k
    classifier: nn.Module  # l_k
    docking: nn.Linear  # z_k
    embeddings: Tensor  # E_k
    targets: Tensor  # of the embeddings: labels, or probabilities


Snapshots = Mapping[str, ClientSnapshot]  # by client


@torch.no_grad()
def embed_samples(client: Client) -> Tensor:
    """Return E_k = h_k(X_k): one row per training sample, without augmentation and in evaluation mode."""
    features = [client.model.features(x) for x, _ in client.clean_pass()]
    return torch.cat([torch.zeros(0, client.profile.features, device=client.device), *features])


def snapshot(server: Server, name: str, upload: Payload, width: int) -> ClientSnapshot:
    """Rebuild a client from its upload, with the docking layer of its last round, or a new one.

    New docking layers of clients with the same architecture have the same weights, as in the released code.
    """
    profile = server.profile(name)
    model = server.build(profile.spec)
    copy_into(model, upload.weights("model"))
    model.eval().requires_grad_(False)
    with rng.seeded(server.seed, "docking", profile.spec):
        docking = nn.Linear(profile.features, width).to(server.device)
    previous = upload.get("docking") or subtree(server.state["docking"]).get(name)
    if previous is not None:
        copy_into(docking, view({"docking": previous}).weights("docking"))
    # Noise, if any, is on the logits: the softmax comes after it.
    targets = upload.tensor("labels").long() if "labels" in upload else upload.tensor("outputs").softmax(1)
    return ClientSnapshot(model.backbone, model.head, docking, upload.tensor("embeddings"), targets)


def unify(server: Server, clients: Snapshots, *, width: int, iterations: int, lr: float) -> list[float]:
    """Train the docking layers with a new head that is then dropped, and store them in the server's state."""
    with rng.seeded(server.seed, "head", server.round):
        head = nn.Linear(width, server.classes).to(server.device)
    losses = fit_docking(clients, head, iterations=iterations, lr=lr)
    docking = {name: weights_of(client.docking) for name, client in clients.items()}
    server.state["docking"] = {**subtree(server.state["docking"]), **docking}
    return losses


def fit_docking(
    clients: Snapshots,
    head: nn.Linear,
    *,
    iterations: int,
    lr: float,
    weight_decay: float = WEIGHT_DECAY,
) -> list[float]:
    """Train docking layers and a common head to classify all embeddings (Eq. 11), then freeze the docking layers.

    An iteration takes one step for every client in turn, on all of its embeddings. Return the mean loss over clients
    of every iteration.
    """
    parameters = [*(p for client in clients.values() for p in client.docking.parameters()), *head.parameters()]
    optimizer = make_optimizer(parameters, TrainSettings(optimizer="adam", lr=lr, weight_decay=weight_decay))
    mean_losses = []
    for _ in range(iterations):
        losses = []
        for client in clients.values():
            optimizer.zero_grad(set_to_none=True)
            logits = head(client.docking(client.embeddings))
            if client.targets.is_floating_point():
                loss = F.kl_div(logits.log_softmax(1), client.targets, reduction="batchmean")
            else:
                loss = F.cross_entropy(logits, client.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        mean_losses.append(torch.stack(losses).mean())
    for client in clients.values():
        client.docking.requires_grad_(False)
    return torch.stack(mean_losses).tolist() if mean_losses else []
