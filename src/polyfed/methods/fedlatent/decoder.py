"""The decoders of FedLatent, from features and a class to a picture, a time series or a row of a table.

None of them has running statistics, so averaged decoders need no recalibration.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core.client_profile import Layout, layout
from polyfed.models.decoders import latent_map, transposed_decoder
from polyfed.models.meta import meta_device

SERIES_CHANNELS = (16, 32, 32)  # of the short series, and of the first two convolutions
TABLE_HIDDEN = 64


class ConditionalDecoder(nn.Module):
    """For pictures: four transposed convolutions that receive the class as one constant map per class, next to the
    latent map."""

    def __init__(self, features: int, image: tuple[int, ...], classes: int) -> None:
        super().__init__()
        _, height, width = latent_map(features, image)
        self.classes, self.cells = classes, height * width
        self.decoder = transposed_decoder(features + classes * self.cells, image, norm="group")

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        maps = F.one_hot(labels, self.classes).to(latents.dtype).repeat_interleave(self.cells, 1)
        images: Tensor = self.decoder(torch.cat([latents, maps], 1))
        return images


class VectorDecoder(nn.Module):
    """For series and tables: layers that read flat features followed by the class as a one-hot vector."""

    def __init__(self, classes: int, layers: nn.Sequential, length: int) -> None:
        super().__init__()
        self.classes, self.layers, self.length = classes, layers, length

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        classes = F.one_hot(labels, self.classes).to(latents.dtype)
        samples: Tensor = self.layers(torch.cat([latents, classes], 1))
        return samples[..., : self.length]


def new_decoder(features: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build the decoder for samples of a shape: (columns,), (channels, steps) or (channels, height, width)."""
    inputs = features + classes
    if len(shape) == 1:
        return VectorDecoder(classes, _table_layers(inputs, shape[0]), shape[0])
    if len(shape) == 2:
        return VectorDecoder(classes, _series_layers(inputs, *shape), shape[1])
    return ConditionalDecoder(features, shape, classes)


def _table_layers(inputs: int, columns: int) -> nn.Sequential:
    """Build two hidden layers."""
    hidden = [nn.Linear(inputs, TABLE_HIDDEN), nn.LeakyReLU(0.01), nn.Linear(TABLE_HIDDEN, TABLE_HIDDEN)]
    return nn.Sequential(*hidden, nn.LeakyReLU(0.01), nn.Linear(TABLE_HIDDEN, columns))


def _series_layers(inputs: int, channels: int, steps: int) -> nn.Sequential:
    """Build a linear layer to a series of an eighth of the steps (rounded up), which three convolutions double."""
    first, second, third = SERIES_CHANNELS
    length = -(-steps // 8)
    return nn.Sequential(
        nn.Linear(inputs, first * length),
        nn.LeakyReLU(0.01),
        nn.Unflatten(1, (first, length)),
        nn.ConvTranspose1d(first, second, 4, stride=2, padding=1),
        nn.LeakyReLU(0.01),
        nn.ConvTranspose1d(second, third, 4, stride=2, padding=1),
        nn.LeakyReLU(0.01),
        nn.ConvTranspose1d(third, channels, 4, stride=2, padding=1),
    )


@cache
def decoder_layout(features: int, shape: tuple[int, ...], classes: int) -> Layout:
    """Return names, shapes and types of the decoder's weights."""
    with meta_device():
        return layout(new_decoder(features, shape, classes))
