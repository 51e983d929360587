"""The embedding decoder: from a vector of the common space to an image for the clients' models."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.methods.dffke.pixel_statistics import PIXEL_MEAN, PIXEL_STD
from polyfed.models.meta import meta_device

Shape = tuple[int, ...]  # channels, height, width


class EmbeddingDecoder(nn.Module):
    """A linear layer to a small feature map, then two blocks of upsampling and convolution.

    The last BatchNorm gives pixels with mean 0 and standard deviation 1 in every channel. They are scaled to
    `pixel_mean` and `pixel_std`, because models here take pixels in [0, 1].
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, width: int, shape: Shape, channels: int = 128) -> None:
        super().__init__()
        self.shape = shape
        rows, columns = (math.ceil(side / 4) for side in shape[1:])
        half = max(1, channels // 2)
        self.start = nn.Sequential(
            nn.Linear(width, channels * rows * columns),
            nn.Unflatten(1, (channels, rows, columns)),
            nn.BatchNorm2d(channels),
        )
        self.grow = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),  # BatchNorm would cancel a bias
            nn.BatchNorm2d(channels),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(channels, half, 3, padding=1, bias=False),
            nn.BatchNorm2d(half),
            nn.LeakyReLU(0.2),
            nn.Conv2d(half, shape[0], 3, padding=1),
            nn.Tanh(),
        )
        self.pixels = nn.BatchNorm2d(shape[0], affine=False)
        self.register_buffer("pixel_mean", torch.full((shape[0],), PIXEL_MEAN))
        self.register_buffer("pixel_std", torch.full((shape[0],), PIXEL_STD))

    def forward(self, codes: Tensor) -> Tensor:
        _, height, width = self.shape
        maps = self.grow(self.start(codes))[:, :, :height, :width]  # crop sides that are not divisible by four
        images: Tensor = self.pixel_mean[:, None, None] + self.pixel_std[:, None, None] * self.pixels(maps)
        return images


def decoder_skeleton(width: int, shape: Shape, channels: int) -> EmbeddingDecoder:
    """Return a decoder without memory for weights, in evaluation mode. `decode` runs it with given weights."""
    with meta_device():
        return EmbeddingDecoder(width, shape, channels).eval()


@torch.no_grad()
def decode(decoder: EmbeddingDecoder, weights: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """Decode codes into images with the given decoder weights."""
    images: Tensor = functional_call(decoder, dict(weights), (codes,))
    return images.contiguous(memory_format=torch.channels_last)
