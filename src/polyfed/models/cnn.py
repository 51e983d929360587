"""Plain convolutional networks: FedAvg's 4-layer CNN and FedFree's CNN."""

from __future__ import annotations

from torch import Tensor, nn

from polyfed.models.blocks import Trunk, scaled
from polyfed.models.spec import ModelSpec

SMALLEST_INPUT = 16  # two unpadded 5x5 convolutions, each followed by 2x2 pooling, reduce it to one pixel


class PlainCNN(Trunk):
    """Two unpadded 5x5 convolutions with pooling, then fully connected layers, all with ReLU and without norms."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int], hidden: tuple[int, ...]) -> None:
        super().__init__()
        first, second = scaled(32, spec.width), scaled(64, spec.width)
        self.convs = nn.Sequential(
            nn.Conv2d(shape[0], first, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        inputs = second * _after_convs(shape[1]) * _after_convs(shape[2])
        dense: list[nn.Module] = []
        for outputs in (scaled(n, spec.width) for n in hidden):
            dense += [nn.Linear(inputs, outputs), nn.ReLU()]
            inputs = outputs
        self.dense = nn.Sequential(*dense)
        self.channels = inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.convs(x))
        return out


def _after_convs(pixels: int) -> int:
    """Return the side length of the map after both convolutions and poolings."""
    return ((pixels - 4) // 2 - 4) // 2


def cnn4(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build FedAvg's 4-layer CNN."""
    return PlainCNN(spec, shape, (512,))


def cnn_fedfree(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build FedFree's CNN."""
    return PlainCNN(spec, shape, (1200, 1000))
