"""Parts that several architectures share, each written once."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

Activation = Callable[[], nn.Module]


def scaled(channels: int, width: float) -> int:
    """How many of `channels` a layer keeps at this width: ceil(width * channels), never 0.

    The tiny subtraction keeps rounding noise from adding a channel (0.1 * 30 is 3.0000000000000004).
    """
    return max(1, math.ceil(channels * width - 1e-9))


def multiple_of_8(channels: float) -> int:
    """The nearest multiple of 8, but never more than 10 % below: the mobile networks' rounding."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def make_norm(norm: str, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        # At least 8 channels in a group: fewer would cancel out where the map has shrunk to one pixel.
        return nn.GroupNorm(math.gcd(32, max(1, channels // 8), channels), channels)
    if norm == "layer":
        return nn.GroupNorm(1, channels)
    return nn.Identity()


class Trunk(nn.Module):
    """The middle of a backbone: normalised images in, a feature map or flat features out."""

    channels: int  # of what comes out
    spatial: bool = True  # whether (N, channels, h, w) comes out, or (N, channels)


class StridedPointwise(nn.Conv2d):
    """A 1x1 convolution with a stride, as one without a stride on every so-manieth pixel: the same numbers.

    oneDNN's own kernel writes past its memory in the backward pass where a channels-last input has few channels
    (below 8, or 16 with AVX-512; its issue 6035), which ends the process or spoils numbers elsewhere.
    """

    def forward(self, x: Tensor) -> Tensor:
        down, across = self.stride
        return F.conv2d(x[:, :, ::down, ::across], self.weight, self.bias, groups=self.groups)


class ConvNormAct(nn.Sequential):
    """Convolution, norm, activation, with the padding that keeps the size at stride 1.

    The convolution has a bias only where no norm would take it out again.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        norm: str,
        stride: int = 1,
        groups: int = 1,
        act: Activation | None = nn.ReLU,
    ) -> None:
        super().__init__()
        padding = (kernel - 1) // 2
        bias = norm == "none"
        kind = StridedPointwise if kernel == 1 and stride > 1 else nn.Conv2d
        self.conv = kind(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=bias)
        self.norm = make_norm(norm, outputs)
        if act is not None:
            self.act = act()


class SqueezeExcite(nn.Module):
    """Weighs every channel by a gate computed from the channels' means."""

    def __init__(self, channels: int, squeezed: int, *, act: Activation, gate: Activation) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.act = act()
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.gate(self.expand(self.act(self.reduce(self.pool(x)))))
        return x * weight


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel, project by 1x1; the input is added where shapes allow.

    `expanded == inputs` leaves the expansion out. `fused` filters and expands in one full convolution.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        expanded: int,
        kernel: int,
        stride: int,
        norm: str,
        act: Activation,
        excite: SqueezeExcite | None = None,
        expand: bool = True,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.adds_input = stride == 1 and inputs == outputs
        layers: list[nn.Module] = []
        if fused:
            last = expanded if expand else outputs
            layers.append(ConvNormAct(inputs, last, kernel, norm=norm, stride=stride, act=act))
        else:
            if expand:
                layers.append(ConvNormAct(inputs, expanded, 1, norm=norm, act=act))
            layers.append(ConvNormAct(expanded, expanded, kernel, norm=norm, stride=stride, groups=expanded, act=act))
        if excite is not None:
            layers.append(excite)
        if expand or not fused:
            layers.append(ConvNormAct(expanded, outputs, 1, norm=norm, act=None))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.adds_input else out
