"""ShuffleNetV2 at x1.5 and x2.0.

The channel shuffle interleaves two halves, so the leading channels of a narrow model do not correspond to those of a
wide one. The model can be built at any width, but it cannot be sliced by width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, Trunk, scaled
from polyfed.models.spec import ModelSpec

REPEATS = (4, 8, 4)
# (output channels of the three stages, output channels of the last convolution)
SIZES = {
    "shufflenet-v2-x1.5": ((176, 352, 704), 1024),
    "shufflenet-v2-x2.0": ((244, 488, 976), 2048),
}


def shuffle(x: Tensor) -> Tensor:
    """Interleave the first and the second half of the channels."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


def _branch(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    """Build a branch of 1x1, depthwise 3x3 and 1x1 convolutions."""
    return nn.Sequential(
        ConvNormAct(inputs, outputs, 1, norm=norm),
        ConvNormAct(outputs, outputs, 3, norm=norm, stride=stride, groups=outputs, act=None),
        ConvNormAct(outputs, outputs, 1, norm=norm),
    )


class Downsample(nn.Module):
    """Downsampling unit. Both branches receive all channels and halve height and width."""

    def __init__(self, inputs: int, half: int, norm: str) -> None:
        super().__init__()
        self.left = nn.Sequential(
            ConvNormAct(inputs, inputs, 3, norm=norm, stride=2, groups=inputs, act=None),
            ConvNormAct(inputs, half, 1, norm=norm),
        )
        self.right = _branch(inputs, half, 2, norm)

    def forward(self, x: Tensor) -> Tensor:
        return shuffle(torch.cat([self.left(x), self.right(x)], dim=1))


class Unit(nn.Module):
    """Basic unit. One half of the channels passes unchanged, the other half goes through convolutions."""

    def __init__(self, half: int, norm: str) -> None:
        super().__init__()
        self.right = _branch(half, half, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        return shuffle(torch.cat([left, self.right(right)], dim=1))


class ShuffleNetV2(Trunk):
    """A stem, three stages of shuffle units, and a final 1x1 convolution."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        outputs, last = SIZES[spec.name]
        inputs = scaled(24, spec.width)
        self.stem = nn.Sequential(
            ConvNormAct(shape[0], inputs, 3, norm=spec.norm, stride=2), nn.MaxPool2d(3, 2, padding=1)
        )
        self.stages = nn.ModuleList()
        for repeats, base in zip(REPEATS, outputs, strict=True):
            half = scaled(base // 2, spec.width)
            units = (Unit(half, spec.norm) for _ in range(repeats - 1))
            self.stages.append(nn.Sequential(Downsample(inputs, half, spec.norm), *units))
            inputs = 2 * half
        self.channels = scaled(last, spec.width)
        self.last = ConvNormAct(inputs, self.channels, 1, norm=spec.norm)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.last(x)
        return out
