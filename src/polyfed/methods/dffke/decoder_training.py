"""Training of the embedding decoder through the clients' frozen models (Eq. 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import Server, rng
from polyfed.methods.dffke.decoder import EmbeddingDecoder
from polyfed.methods.dffke.docking import Snapshots
from polyfed.methods.dffke.pixel_statistics import pooled_statistics
from polyfed.training.endless_batches import cycled, started
from polyfed.training.fit import TrainSettings, make_optimizer

Codes = Mapping[str, Tensor]  # embeddings in the common space, by client
# client, images, the features that the client's encoder extracts from them, random stream
AddedLoss = Callable[[str, Tensor, Tensor, torch.Generator], Tensor] | None


def new_decoder(server: Server, width: int, channels: int) -> EmbeddingDecoder:
    """Return the decoder of a round before training, with the pixel statistics that clients reported."""
    with rng.seeded(server.seed, "decoder", server.round):
        decoder = EmbeddingDecoder(width, server.roster[0].input_shape, channels)
    mean, std = pooled_statistics(server)
    decoder.pixel_mean.copy_(mean)
    decoder.pixel_std.copy_(std)
    decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return decoder.to(server.device)


def steps_per_client(rows: Collection[int], epochs: int, batch: int, least_steps: int) -> int:
    """Return the steps on each client's codes: epochs of the largest, or more to reach `least_steps` in all."""
    return max(least_steps // len(rows), epochs * max(math.ceil(count / batch) for count in rows))


def fit_decoder(
    server: Server,
    decoder: nn.Module,
    clients: Snapshots,
    codes: Codes,
    iterations: int,
    batch: int,
    lr: float,
    added_loss: AddedLoss = None,
) -> list[float]:
    """Train the decoder so that encoder and docking layer map its images back to the codes (Eq. 12).

    An iteration takes one step for every client in turn, on a batch of its codes. Batches of one code are skipped,
    because BatchNorm cannot be trained on them. Return the mean fidelity loss of every iteration, without
    `added_loss`.
    """
    streams = {name: server.stream(f"decoder {name}") for name in codes}
    optimizer = make_optimizer(decoder.parameters(), TrainSettings(optimizer="adam", lr=lr))
    ahead = iterations if added_loss is None else 1  # an added loss uses the same stream
    batches = {
        name: started(cycled(rows, rows, batch, streams[name], ahead))
        for name, rows in codes.items()
        if len(rows) > 1
    }
    decoder.train()
    mean_losses = []
    for _ in range(iterations):
        losses = []
        for name, client_batches in batches.items():
            code, _ = next(client_batches)
            if len(code) < 2:
                continue
            optimizer.zero_grad(set_to_none=True)
            images = decoder(code)
            features = clients[name].encoder(images)
            loss = F.mse_loss(clients[name].docking(features), code)
            losses.append(loss.detach())
            if added_loss is not None:
                loss = loss + added_loss(name, images, features, streams[name])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if losses:
            mean_losses.append(torch.stack(losses).mean())
    optimizer.zero_grad(set_to_none=True)
    return torch.stack(mean_losses).tolist() if mean_losses else []
