"""GoogLeNet with batch norm after every convolution and no auxiliary heads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, Trunk, scaled
from polyfed.models.spec import ModelSpec

SMALLEST_INPUT = 15  # smaller images leave no pixels for the third pooling
DROPOUT = 0.2


class Branches(NamedTuple):
    """Output channels of the branches of an inception module, and of their 1x1 reductions."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int

    @property
    def total(self) -> int:
        """Number of output channels of the module."""
        return self.one + self.three + self.five + self.pool


STAGES = (
    (Branches(64, 96, 128, 16, 32, 32), Branches(128, 128, 192, 32, 96, 64)),
    (
        Branches(192, 96, 208, 16, 48, 64),
        Branches(160, 112, 224, 24, 64, 64),
        Branches(128, 128, 256, 24, 64, 64),
        Branches(112, 144, 288, 32, 64, 64),
        Branches(256, 160, 320, 32, 128, 128),
    ),
    (Branches(256, 160, 320, 32, 128, 128), Branches(384, 192, 384, 48, 128, 128)),
)


class Inception(nn.Module):
    """Four concatenated branches. The "5x5" branch has a 3x3 kernel, as in torchvision."""

    def __init__(self, inputs: int, sizes: Branches, norm: str) -> None:
        super().__init__()
        self.one = ConvNormAct(inputs, sizes.one, 1, norm=norm)
        self.three = nn.Sequential(
            ConvNormAct(inputs, sizes.three_reduce, 1, norm=norm),
            ConvNormAct(sizes.three_reduce, sizes.three, 3, norm=norm),
        )
        self.five = nn.Sequential(
            ConvNormAct(inputs, sizes.five_reduce, 1, norm=norm),
            ConvNormAct(sizes.five_reduce, sizes.five, 3, norm=norm),
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), ConvNormAct(inputs, sizes.pool, 1, norm=norm))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


class GoogLeNet(Trunk):
    """A stem and three stages of inception modules, with max pooling in between."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        first, inputs = scaled(64, spec.width), scaled(192, spec.width)
        self.stem = nn.Sequential(
            ConvNormAct(shape[0], first, 7, norm=spec.norm, stride=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            ConvNormAct(first, first, 1, norm=spec.norm),
            ConvNormAct(first, inputs, 3, norm=spec.norm),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.stages = nn.ModuleList()
        for index, modules in enumerate(STAGES):
            stage = nn.Sequential()
            if index > 0:
                stage.append(nn.MaxPool2d(3 if index == 1 else 2, 2, ceil_mode=True))
            for base in modules:
                sizes = Branches(*(scaled(n, spec.width) for n in base))
                stage.append(Inception(inputs, sizes, spec.norm))
                inputs = sizes.total
            self.stages.append(stage)
        self.channels = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x
