"""Alternating training of model and decoder (section 3.4 of the paper): each is frozen while the other one trains.

Gradients of both never exist at the same time, so that peak memory stays close to training the model alone.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.core import Client
from polyfed.methods.fedvtc.variational_bound import VariationalBound
from polyfed.training.batchnorm import frozen_statistics
from polyfed.training.multi_module import frozen
from polyfed.training.random_draws import Draw


def train_model(client: Client, bound: VariationalBound, epoch: int) -> None:
    """Train f_k for one epoch on L + L_tc with psi_k and sigma_k frozen. L_tc reaches only the extractor g_k."""
    backbone, head = client.model.backbone, client.model.head
    sigma = bound.deviation().detach()

    def loss(x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        z = bound.forward(backbone, x)
        decoded = bound.decode(z, sigma, noise)  # x'
        with frozen_statistics(client.model):  # BatchNorm tracks real images only
            re_encoded = bound.forward(backbone, decoded) if bound.weights.matching else None
        return F.cross_entropy(head(z), y), bound.loss(x, y, z, sigma, decoded, re_encoded)

    with frozen(bound.decoder):
        draw = normal(client, f"noise for model {epoch}")
        client.fit(loss, epochs=1, steps=client.settings.steps, purpose=f"model {epoch}", draw=draw)


def train_decoder(
    client: Client,
    bound: VariationalBound,
    epoch: int,
    lr: float | None = None,
    optimizer: Literal["sgd", "adam"] | None = None,
) -> int:
    """Train psi_k and sigma_k for one epoch on L_tc with f_k frozen. Return the number of steps.

    Learning rate and optimiser default to those of local training.
    """

    def loss(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            z = client.model.features(x)
        sigma = bound.deviation()
        decoded = bound.decode(z, sigma, noise)
        re_encoded = bound.forward(client.model.backbone, decoded) if bound.weights.matching else None
        return bound.loss(x, y, z, sigma, decoded, re_encoded)

    with frozen(client.model):
        return client.fit(
            loss,
            modules=[bound.decoder, bound.deviation],
            purpose=f"decoder {epoch}",
            epochs=1,
            steps=client.settings.steps,
            lr=lr or client.settings.lr,
            optimizer=optimizer or client.settings.optimizer,
            draw=normal(client, f"noise for decoder {epoch}"),
        ).steps


def normal(client: Client, purpose: str) -> Draw:
    """Return a function that draws one latent's noise for every sample of a batch."""
    stream, width = client.stream(purpose), client.profile.features
    return lambda batch: (torch.randn(batch, width, generator=stream),)
