"""The decoder of FedLatent: from features and a class to an image."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core.client_profile import Layout, layout
from polyfed.models.decoders import latent_map, transposed_decoder
from polyfed.models.meta import meta_device


class ConditionalDecoder(nn.Module):
    """Four transposed convolutions that receive the class as one constant map per class, next to the latent map.

    Group normalisation has no running statistics, so averaged decoders need no recalibration.
    """

    def __init__(self, features: int, image: tuple[int, ...], classes: int) -> None:
        super().__init__()
        _, height, width = latent_map(features, image)
        self.classes, self.cells = classes, height * width
        self.decoder = transposed_decoder(features + classes * self.cells, image, norm="group")

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        maps = F.one_hot(labels, self.classes).to(latents.dtype).repeat_interleave(self.cells, 1)
        images: Tensor = self.decoder(torch.cat([latents, maps], 1))
        return images


@cache
def decoder_layout(features: int, image: tuple[int, ...], classes: int) -> Layout:
    """Return names, shapes and types of the decoder's weights."""
    with meta_device():
        return layout(ConditionalDecoder(features, image, classes))
