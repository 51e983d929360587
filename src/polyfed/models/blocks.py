"""Building blocks that several architectures share."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

Activation = Callable[[], nn.Module]


def scaled(channels: int, width: float) -> int:
    """Return the channels of a layer at this width multiplier: ceil(width * channels), at least 1.

    The small subtraction prevents rounding errors from adding a channel (0.1 * 30 is 3.0000000000000004).
    """
    return max(1, math.ceil(channels * width - 1e-9))


def multiple_of_8(channels: float) -> int:
    """Round to the nearest multiple of 8, but at most 10 % down, as the MobileNets do."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def make_norm(norm: str, channels: int) -> nn.Module:
    """Build a norm layer: "batch", "group", "layer" or "none"."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        # At least 8 channels per group: with fewer, normalising a 1x1 map would erase most of the information.
        return nn.GroupNorm(math.gcd(32, max(1, channels // 8), channels), channels)
    if norm == "layer":
        return nn.GroupNorm(1, channels)
    return nn.Identity()


class Trunk(nn.Module):
    """The main part of a backbone. It maps normalised inputs to a feature map or to flat features."""

    channels: int  # of the output
    spatial: bool = True  # output is (N, channels, h, w) if True, (N, channels) if False


class StridedPointwise(nn.Conv2d):
    """A strided 1x1 convolution, computed as an unstrided one on a subsampled input. The results are the same.

    oneDNN's strided kernel writes out of bounds in the backward pass if a channels-last input has few channels
    (below 8, or 16 with AVX-512; oneDNN issue 6035). This crashes the process or corrupts other tensors.
    """

    def forward(self, x: Tensor) -> Tensor:
        stride_y, stride_x = self.stride
        return F.conv2d(x[:, :, ::stride_y, ::stride_x], self.weight, self.bias, groups=self.groups)


class ConvNormAct(nn.Sequential):
    """Convolution, norm and activation, with padding that preserves the size at stride 1.

    The convolution has a bias only if no norm follows, because a norm would cancel it.
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
        convolution = StridedPointwise if kernel == 1 and stride > 1 else nn.Conv2d
        self.conv = convolution(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=bias)
        self.norm = make_norm(norm, outputs)
        if act is not None:
            self.act = act()


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation: each channel is scaled by a gate computed from the channel means."""

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
    """Inverted residual block: 1x1 expansion, depthwise convolution, 1x1 projection.

    The input is added if the shapes are equal. `expand=False` leaves out the expansion. `fused` replaces expansion
    and depthwise convolution by one full convolution.
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
