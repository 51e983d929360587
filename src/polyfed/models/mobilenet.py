"""MobileNetV2 and MobileNetV3 (small, large). The head is one linear layer after pooling."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, InvertedResidual, SqueezeExcite, Trunk, multiple_of_8, scaled
from polyfed.models.spec import ModelSpec

DROPOUT_V2 = 0.2

# (expansion factor, output channels, number of blocks, stride of the first block)
V2_ROWS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class V3Row(NamedTuple):
    """Hyperparameters of one MobileNetV3 block."""

    kernel: int
    expanded: int
    outputs: int
    excite: bool
    hard_swish: bool  # Hardswish if True, ReLU if False
    stride: int


V3_LARGE = (
    V3Row(3, 16, 16, False, False, 1),
    V3Row(3, 64, 24, False, False, 2),
    V3Row(3, 72, 24, False, False, 1),
    V3Row(5, 72, 40, True, False, 2),
    V3Row(5, 120, 40, True, False, 1),
    V3Row(5, 120, 40, True, False, 1),
    V3Row(3, 240, 80, False, True, 2),
    V3Row(3, 200, 80, False, True, 1),
    V3Row(3, 184, 80, False, True, 1),
    V3Row(3, 184, 80, False, True, 1),
    V3Row(3, 480, 112, True, True, 1),
    V3Row(3, 672, 112, True, True, 1),
    V3Row(5, 672, 160, True, True, 2),
    V3Row(5, 960, 160, True, True, 1),
    V3Row(5, 960, 160, True, True, 1),
)
V3_SMALL = (
    V3Row(3, 16, 16, True, False, 2),
    V3Row(3, 72, 24, False, False, 2),
    V3Row(3, 88, 24, False, False, 1),
    V3Row(5, 96, 40, True, True, 2),
    V3Row(5, 240, 40, True, True, 1),
    V3Row(5, 240, 40, True, True, 1),
    V3Row(5, 120, 48, True, True, 1),
    V3Row(5, 144, 48, True, True, 1),
    V3Row(5, 288, 96, True, True, 2),
    V3Row(5, 576, 96, True, True, 1),
    V3Row(5, 576, 96, True, True, 1),
)


class MobileNet(Trunk):
    """A stem, stages of inverted residual blocks, and a final 1x1 convolution."""

    def __init__(self, stem: ConvNormAct, stages: list[nn.Sequential], last: ConvNormAct) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.last = last
        self.channels = last.conv.out_channels

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.last(x)
        return out


def mobilenet_v2(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build MobileNetV2."""
    width, norm = spec.width, spec.norm
    base = 32
    stem = ConvNormAct(shape[0], scaled(base, width), 3, norm=norm, stride=2, act=nn.ReLU6)
    stages: list[nn.Sequential] = []
    for factor, outputs, repeats, first_stride in V2_ROWS:
        stage = nn.Sequential()
        for index in range(repeats):
            stage.append(
                InvertedResidual(
                    scaled(base, width),
                    scaled(outputs, width),
                    expanded=scaled(factor * base, width),
                    expand=factor != 1,
                    kernel=3,
                    stride=first_stride if index == 0 else 1,
                    norm=norm,
                    act=nn.ReLU6,
                )
            )
            base = outputs
        stages.append(stage)
    last = ConvNormAct(scaled(base, width), scaled(1280, width), 1, norm=norm, act=nn.ReLU6)
    return MobileNet(stem, stages, last)


def mobilenet_v3_small(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build MobileNetV3-Small."""
    return _mobilenet_v3(spec, shape, V3_SMALL)


def mobilenet_v3_large(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build MobileNetV3-Large."""
    return _mobilenet_v3(spec, shape, V3_LARGE)


def _mobilenet_v3(spec: ModelSpec, shape: tuple[int, int, int], rows: tuple[V3Row, ...]) -> Trunk:
    """Build a MobileNetV3. A new stage starts at every block with stride 2."""
    width, norm = spec.width, spec.norm
    base = 16
    stem = ConvNormAct(shape[0], scaled(base, width), 3, norm=norm, stride=2, act=nn.Hardswish)
    stages: list[nn.Sequential] = []
    for row in rows:
        if row.stride == 2 or not stages:
            stages.append(nn.Sequential())
        stages[-1].append(_v3_block(scaled(base, width), row, width, norm, expand=row.expanded != base))
        base = row.outputs
    last = ConvNormAct(scaled(base, width), scaled(6 * base, width), 1, norm=norm, act=nn.Hardswish)
    return MobileNet(stem, stages, last)


def _v3_block(inputs: int, row: V3Row, width: float, norm: str, *, expand: bool) -> InvertedResidual:
    expanded = scaled(row.expanded, width)
    excite = None
    if row.excite:
        squeezed = scaled(multiple_of_8(row.expanded / 4), width)
        excite = SqueezeExcite(expanded, squeezed, act=nn.ReLU, gate=nn.Hardsigmoid)
    return InvertedResidual(
        inputs,
        scaled(row.outputs, width),
        expanded=expanded,
        expand=expand,
        kernel=row.kernel,
        stride=row.stride,
        norm=norm,
        act=nn.Hardswish if row.hard_swish else nn.ReLU,
        excite=excite,
    )
