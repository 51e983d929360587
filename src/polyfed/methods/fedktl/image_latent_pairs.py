"""Pairs of a generated image and its latent, one per class: made at the server, iterated at a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyfed.core import Client, Payload, Server, Value, rng
from polyfed.errors import PayloadError
from polyfed.models.generators import resized
from polyfed.training.endless_batches import cycled

IMAGE_SIZE = ("channels", "height", "width")


def make_pairs(server: Server, generator: nn.Module) -> dict[str, Value]:
    """Return the centroid of every class that was ever reported, and its image in the clients' size."""
    latents = server.memory.table("centroids")
    if not len(latents):
        return {"latents": latents}
    channels, height, width = (int(server.memory.number(side)) for side in IMAGE_SIZE)
    with torch.no_grad(), rng.seeded(server.seed, "images", server.round):
        images = generator(latents.values)
    return {"latents": latents, "images": resized(images, (channels, height, width))}


@dataclass(frozen=True)
class Pairs:
    """Received images and latents, and endless batches of their indices."""

    images: Tensor
    latents: Tensor
    batches: Iterator[tuple[Tensor, Tensor]]

    @staticmethod
    def received(client: Client, msg: Payload) -> Pairs | None:
        """Return the pairs of a message, or None if there are none yet."""
        latents, shape = msg.table("latents").values, client.train.inputs.shape[1:]
        if not len(latents):
            return None
        images = msg.tensor("images")
        if images.shape != (len(latents), *shape):
            raise PayloadError(f"field 'images' has shape {tuple(images.shape)}, expected {(len(latents), *shape)}")
        rows = torch.arange(len(latents))
        return Pairs(images, latents, cycled(rows, rows, client.settings.batch_size, client.stream("pairs")))

    def draw(self, batch: int) -> tuple[Tensor]:
        """Return the indices of the pairs of the next step."""
        return (next(self.batches)[0],)
