"""DFFKE's decoder: from a vector in the space that all clients share to an image for their models."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Shape = tuple[int, int, int]  # channels, height, width
# The last norm gives pixels of mean 0 and deviation 1. Models here want [0, 1], and the server has seen no picture
# from which it could take a mean and a deviation: these put two deviations on either side into that range.
MIDDLE, SPREAD = 0.5, 0.25


class EmbeddingDecoder(nn.Module):
    """A linear layer to a small map, then twice: double the size, convolve (2.1)."""

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
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),  # a bias before a norm would do nothing
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

    def forward(self, codes: Tensor) -> Tensor:
        _, height, width = self.shape
        grown = self.grow(self.start(codes))[:, :, :height, :width]  # sides that do not divide by four are cut
        painted: Tensor = MIDDLE + SPREAD * self.pixels(grown)
        return painted


def decoder_skeleton(width: int, shape: Shape, channels: int) -> EmbeddingDecoder:
    """A decoder without memory for its weights, in evaluation mode: `decoded` lends it those of any round."""
    with torch.device("meta"):
        return EmbeddingDecoder(width, shape, channels).eval()


@torch.no_grad()
def decoded(skeleton: EmbeddingDecoder, weights: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """What a decoder with these weights makes of codes."""
    images: Tensor = functional_call(skeleton, dict(weights), (codes,))
    return images.contiguous(memory_format=torch.channels_last)


class Album:
    """Synthetic images by round, client and row: only decoders and codes are kept, images are made when looked at."""

    def __init__(
        self, skeleton: EmbeddingDecoder, rounds: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]
    ) -> None:
        self._skeleton = skeleton
        self._rounds = rounds  # the weights of a round's decoder, and the codes of its clients
        self._weights: dict[str, dict[str, Tensor]] = {}  # as they are used

    def count(self, name: str, client: str) -> int:
        """How many images of the client there are from a round; 0 where the round is not here."""
        return len(self._rounds[name][1].get(client, ())) if name in self._rounds else 0

    def images(self, name: str, client: str, rows: Tensor) -> Tensor:
        weights, codes = self._rounds[name]
        if name not in self._weights:
            self._weights[name] = {key: _channels_last(tensor) for key, tensor in weights.items()}
        return decoded(self._skeleton, self._weights[name], codes[client][rows])


def _channels_last(tensor: Tensor) -> Tensor:
    """The layout that CPU convolutions are fastest on: half the time here."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


class PublicAlbum:
    """The same images for every round and client: a set that everybody has."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def count(self, name: str, client: str) -> int:
        return len(self._images)

    def images(self, name: str, client: str, rows: Tensor) -> Tensor:
        shown = self._images[rows].to(torch.float32, memory_format=torch.channels_last)
        return shown.mul_(1 / 255)


def some_of_each(labels: Tensor, number: int) -> Tensor:
    """Rows of the first so many of every class, by class."""
    return torch.cat([torch.nonzero(labels == label).flatten()[:number] for label in sorted(set(labels.tolist()))])


def viewable(images: Tensor) -> Tensor:
    """For the eye: inside [0, 1]."""
    return F.hardtanh(images, 0.0, 1.0).contiguous()
