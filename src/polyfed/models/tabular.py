"""CPU-sized networks for tables: a row of numbers per sample. Each one normalises its inputs with batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.models.blocks import Trunk, scaled
from polyfed.models.spec import ModelSpec
from polyfed.models.vit import Block

FEATURES = 64  # the common feature width of the group


def _columns(shape: tuple[int, ...]) -> int:
    """Return the number of values per sample."""
    return int(torch.Size(shape).numel())


class TableMLP(Trunk):
    """A multilayer perceptron with two hidden layers."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        columns, hidden = _columns(shape), scaled(128, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.BatchNorm1d(columns),
            nn.Linear(columns, hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.channels),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class TableResNet(Trunk):
    """Residual blocks of norm, linear, ReLU and linear, after Gorishniy et al., NeurIPS 2021."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        columns, self.channels = _columns(shape), scaled(FEATURES, spec.width)
        self.stem = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(columns), nn.Linear(columns, self.channels))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(self.channels),
                nn.Linear(self.channels, 2 * self.channels),
                nn.ReLU(),
                nn.Linear(2 * self.channels, self.channels),
            )
            for _ in range(2)
        )
        self.last = nn.Sequential(nn.BatchNorm1d(self.channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.stem(x)
        for block in self.blocks:
            z = z + block(z)
        out: Tensor = self.last(z)
        return out


class TableWide(Trunk):
    """One wide hidden layer and a parallel linear layer, summed."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        columns, hidden = _columns(shape), scaled(256, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(columns))
        self.deep = nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, self.channels))
        self.linear = nn.Linear(columns, self.channels)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        return torch.relu(self.deep(z) + self.linear(z))


class TableTransformer(Trunk):
    """A transformer layer over columns, each column a token (FT-Transformer, Gorishniy et al., NeurIPS 2021)."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...]) -> None:
        super().__init__()
        columns, token = _columns(shape), scaled(16, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(columns))
        self.scale = nn.Parameter(torch.empty(columns, token).normal_(std=token**-0.5))
        self.shift = nn.Parameter(torch.zeros(columns, token))
        self.layer = Block(token, 2, 4 * token)
        self.last = nn.Sequential(nn.LayerNorm(token), nn.Linear(token, self.channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).unsqueeze(-1) * self.scale + self.shift
        out: Tensor = self.last(self.layer(tokens).mean(1))
        return out


TABLE = {
    "tiny-table-mlp": TableMLP,
    "tiny-table-resnet": TableResNet,
    "tiny-table-wide": TableWide,
    "tiny-table-transformer": TableTransformer,
}
