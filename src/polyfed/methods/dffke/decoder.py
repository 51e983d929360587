"""The embedding decoder: from a vector of the common space to an image for the clients' models."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.methods.dffke.pixel_statistics import PIXEL_MEAN, PIXEL_STD
from polyfed.models.meta import meta_device

Shape = tuple[int, ...]  # channels, height, width
SMALL_LAYER = 1 << 15  # products of one kernel position for one image; another value would change results


class UpsampledConv2d(nn.Conv2d):
    """Upsampling by two (nearest neighbour) and a 3x3 convolution.

    Every pixel of the large image is one of four equal ones, so 4 of the 9 products are enough: the two operations
    are one transposed convolution with stride 2. In one dimension, its kernel is (w2, w1 + w2, w0 + w1, w0). Small
    layers use the two operations: computing the kernel would cost as much as it saves.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 3, padding=1, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.in_channels * self.out_channels * input.shape[2:].numel() < SMALL_LAYER:
            return super().forward(F.interpolate(input, scale_factor=2.0))
        sums = self.weight.new_tensor([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]])
        kernel = torch.einsum("ka,oiab,lb->iokl", sums, self.weight, sums)
        return F.conv_transpose2d(input, kernel, stride=2, padding=1)


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
            nn.Identity(),  # the upsampling is part of the next layer; stored weights keep their names
            UpsampledConv2d(channels, channels),  # without a bias, which BatchNorm would cancel
            nn.BatchNorm2d(channels),
            nn.LeakyReLU(0.2),
            nn.Identity(),
            UpsampledConv2d(channels, half),
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
