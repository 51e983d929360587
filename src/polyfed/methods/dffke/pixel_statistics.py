"""Mean and standard deviation of the clients' pixels, which the decoder's images are scaled to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core import Client, Payload, Server
from polyfed.training.samples import EVALUATION_BATCH

# Without statistics of the data: two standard deviations on either side fill the range [0, 1] of pixels.
PIXEL_MEAN, PIXEL_STD = 0.5, 0.25
MIN_STD = 0.01  # noise may leave a variance at 0 or below


def channel_moments(client: Client) -> Tensor:
    """Return mean and mean square of the pixels of every channel over the training samples, as (2, channels)."""
    sums, pixels = torch.zeros(2, client.profile.input_shape[0], dtype=torch.float64), 0
    for x, _ in client.train.batches(EVALUATION_BATCH):
        values = x.double()
        sums += torch.stack([values.sum((0, 2, 3)), values.square().sum((0, 2, 3))]).cpu()
        pixels += x[:, 0].numel()
    return (sums / max(1, pixels)).float()


def moments_once(client: Client) -> dict[str, Tensor]:
    """Return the client's moments as a field of a reply if it has not sent them yet."""
    if "reported" in client.state or not len(client.train):
        return {}
    client.state["reported"] = True
    return {"pixels": channel_moments(client)}


def store_moments(server: Server, uploads: Mapping[str, Payload]) -> None:
    """Add the moments in clients' uploads to the server's state."""
    moments = {name: upload["pixels"] for name, upload in uploads.items() if "pixels" in upload}
    server.state["pixels"] = {**server.memory.weights("pixels"), **moments}


def pooled_statistics(server: Server) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every channel over the samples of all clients that reported moments."""
    reported = {name: moments.double() for name, moments in server.memory.weights("pixels").items()}
    samples = sum(server.profile(name).samples for name in reported)
    if not samples:
        shape = server.roster[0].input_shape[0]
        return torch.full((shape,), PIXEL_MEAN), torch.full((shape,), PIXEL_STD)
    weighted = [server.profile(name).samples / samples * moments for name, moments in reported.items()]
    mean, square = torch.stack(weighted).sum(0)
    return mean.float(), (square - mean.square()).clamp(min=MIN_STD**2).sqrt().float()
