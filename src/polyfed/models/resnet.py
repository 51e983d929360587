"""Residual networks from ResNet4 to ResNet152. They consist of stages, so they can be sliced by depth and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, Trunk, scaled
from polyfed.models.spec import ModelSpec

CHANNELS = (64, 128, 256, 512)


@dataclass(frozen=True)
class Depth:
    """The number of blocks per stage and the kind of block."""

    blocks: tuple[int, ...]
    bottleneck: bool = False


DEPTHS = {
    "resnet4": Depth((1,)),
    "resnet6": Depth((1, 1)),
    "resnet8": Depth((1, 1, 1)),
    "resnet10": Depth((1, 1, 1, 1)),
    "resnet14": Depth((1, 1, 2, 2)),
    "resnet18": Depth((2, 2, 2, 2)),
    "resnet22": Depth((2, 2, 3, 3)),
    "resnet26": Depth((3, 3, 3, 3)),
    "resnet34": Depth((3, 4, 6, 3)),
    "resnet50": Depth((3, 4, 6, 3), bottleneck=True),
    "resnet101": Depth((3, 4, 23, 3), bottleneck=True),
    "resnet152": Depth((3, 8, 36, 3), bottleneck=True),
}


class ResidualBlock(nn.Module):
    """Residual block relu(layers(x) + shortcut(x)). The shortcut is a 1x1 projection if the shape changes."""

    def __init__(self, layers: nn.Sequential, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.layers = layers
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = ConvNormAct(inputs, outputs, 1, norm=norm, stride=stride, act=None)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.layers(x) + self.shortcut(x))
        return out


def basic_block(inputs: int, outputs: int, *, stride: int, norm: str) -> ResidualBlock:
    """Build a block of two 3x3 convolutions. The first one has the stride."""
    layers = nn.Sequential(
        ConvNormAct(inputs, outputs, 3, norm=norm, stride=stride),
        ConvNormAct(outputs, outputs, 3, norm=norm, act=None),
    )
    return ResidualBlock(layers, inputs, outputs, stride, norm)


def bottleneck_block(inputs: int, inner: int, outputs: int, *, stride: int, norm: str) -> ResidualBlock:
    """Build a block of 1x1, 3x3 and 1x1 convolutions. The 3x3 convolution has the stride."""
    layers = nn.Sequential(
        ConvNormAct(inputs, inner, 1, norm=norm),
        ConvNormAct(inner, inner, 3, norm=norm, stride=stride),
        ConvNormAct(inner, outputs, 1, norm=norm, act=None),
    )
    return ResidualBlock(layers, inputs, outputs, stride, norm)


class ResNet(Trunk):
    """A stem and stages of residual blocks. Every stage after the first halves height and width."""

    def __init__(
        self, stem: nn.Sequential, depth: Depth, channels: Sequence[int], *, width: float, norm: str
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList()
        inputs = scaled(channels[0], width)
        for index, (count, base) in enumerate(zip(depth.blocks, channels, strict=False)):
            inner = scaled(base, width)
            outputs = scaled(4 * base, width) if depth.bottleneck else inner
            stage = nn.Sequential()
            for block in range(count):
                stride = 2 if block == 0 and index > 0 else 1
                stage.append(
                    bottleneck_block(inputs, inner, outputs, stride=stride, norm=norm)
                    if depth.bottleneck
                    else basic_block(inputs, outputs, stride=stride, norm=norm)
                )
                inputs = outputs
            self.stages.append(stage)
        self.channels = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x


def image_stem(inputs: int, outputs: int, norm: str) -> nn.Sequential:
    """Build the ImageNet stem: 7x7 convolution and 3x3 max pooling, both with stride 2."""
    return nn.Sequential(ConvNormAct(inputs, outputs, 7, norm=norm, stride=2), nn.MaxPool2d(3, 2, padding=1))


def small_stem(inputs: int, outputs: int, norm: str, stride: int = 1) -> nn.Sequential:
    """Build the stem for small images: one 3x3 convolution, by default without downsampling."""
    return nn.Sequential(ConvNormAct(inputs, outputs, 3, norm=norm, stride=stride))


def resnet(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build the ResNet that the spec names."""
    stem = spec.stem
    if stem == "auto":
        # The image stem downsamples by 4, which leaves too small a map for images below 32 pixels.
        size = min(shape[1:]) if spec.pool_input is None else min(*shape[1:], spec.pool_input)
        stem = "small" if size < 32 else "image"
    make_stem = small_stem if stem == "small" else image_stem
    first = scaled(CHANNELS[0], spec.width)
    return ResNet(
        make_stem(shape[0], first, spec.norm),
        DEPTHS[spec.name],
        CHANNELS,
        width=spec.width,
        norm=spec.norm,
    )
