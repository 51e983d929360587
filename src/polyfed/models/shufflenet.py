"""ShuffleNetV2 at x1.5 and x2.0.

Its channel shuffle interleaves two halves, so that leading channels of a narrow copy are not those of a wide one:
it can be built at any width, but not be cut out of a wider one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, Trunk, scaled
from polyfed.models.spec import ModelSpec

REPEATS = (4, 8, 4)
# (outputs of the three stages, of the last convolution)
SIZES = {
    "shufflenet-v2-x1.5": ((176, 352, 704), 1024),
    "shufflenet-v2-x2.0": ((244, 488, 976), 2048),
}


def shuffle(x: Tensor) -> Tensor:
    """Takes channels in turn from the first and the second half."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


def _filter(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    """1x1, 3x3 on each channel alone, 1x1."""
    return nn.Sequential(
        ConvNormAct(inputs, outputs, 1, norm=norm),
        ConvNormAct(outputs, outputs, 3, norm=norm, stride=stride, groups=outputs, act=None),
        ConvNormAct(outputs, outputs, 1, norm=norm),
    )


class Downsample(nn.Module):
    """Both branches see the whole input and halve it."""

    def __init__(self, inputs: int, half: int, norm: str) -> None:
        super().__init__()
        self.left = nn.Sequential(
            ConvNormAct(inputs, inputs, 3, norm=norm, stride=2, groups=inputs, act=None),
            ConvNormAct(inputs, half, 1, norm=norm),
        )
        self.right = _filter(inputs, half, 2, norm)

    def forward(self, x: Tensor) -> Tensor:
        return shuffle(torch.cat([self.left(x), self.right(x)], dim=1))


class Unit(nn.Module):
    """One half passes, the other is filtered."""

    def __init__(self, half: int, norm: str) -> None:
        super().__init__()
        self.right = _filter(half, half, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        return shuffle(torch.cat([left, self.right(right)], dim=1))


class ShuffleNetV2(Trunk):
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
