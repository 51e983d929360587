"""CPU-sized networks for time series: (channels, steps) per sample. Batch norm normalises their inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.models.blocks import Trunk, scaled
from polyfed.models.spec import ModelSpec
from polyfed.models.vit import Block

FEATURES = 64  # the common feature width of the group


def _conv(inputs: int, outputs: int, kernel: int, stride: int, dilation: int = 1) -> nn.Sequential:
    """Build a 1-D convolution with batch norm and ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm1d(outputs),
        nn.ReLU(),
    )


class SeriesCNN(Trunk):
    """Three strided convolutions and mean pooling over time."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        first, second = scaled(24, spec.width), scaled(48, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.layers = nn.Sequential(
            nn.BatchNorm1d(shape[0]),
            _conv(shape[0], first, 7, 2),
            _conv(first, second, 5, 2),
            _conv(second, self.channels, 3, 2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class SeriesTCN(Trunk):
    """Dilated convolutions with residual connections, and max pooling over time."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        inner = scaled(32, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.stem = nn.Sequential(nn.BatchNorm1d(shape[0]), _conv(shape[0], inner, 3, 2))
        self.blocks = nn.ModuleList(_conv(inner, inner, 3, 1, dilation) for dilation in (1, 2, 4))
        self.last = nn.Sequential(nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(inner, self.channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.stem(x)
        for block in self.blocks:
            z = z + block(z)
        out: Tensor = self.last(z)
        return out


class SeriesGRU(Trunk):
    """A GRU over steps that are average-pooled in groups of four. The feature is the last hidden state."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.channels = scaled(FEATURES, spec.width)
        self.norm = nn.BatchNorm1d(shape[0])
        self.pool = nn.AvgPool1d(min(4, shape[1]), ceil_mode=True)
        self.gru = nn.GRU(shape[0], self.channels, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(self.pool(self.norm(x)).transpose(1, 2))
        last: Tensor = states[:, -1]
        return last


class SeriesTransformer(Trunk):
    """One transformer layer over patches of eight steps."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        token, patch = scaled(32, spec.width), min(8, shape[1])
        self.channels = scaled(FEATURES, spec.width)
        self.norm = nn.BatchNorm1d(shape[0])
        self.patches = nn.Conv1d(shape[0], token, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(shape[1] // patch, token))
        self.layer = Block(token, 4, 2 * token)
        self.last = nn.Sequential(nn.LayerNorm(token), nn.Linear(token, self.channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(self.norm(x)).transpose(1, 2) + self.position
        out: Tensor = self.last(self.layer(tokens).mean(1))
        return out


SERIES = {
    "tiny-series-cnn": SeriesCNN,
    "tiny-series-tcn": SeriesTCN,
    "tiny-series-gru": SeriesGRU,
    "tiny-series-transformer": SeriesTransformer,
}
