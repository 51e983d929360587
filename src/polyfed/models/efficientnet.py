"""EfficientNetV2-S: fused blocks, followed by inverted residual blocks with squeeze-and-excitation."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, InvertedResidual, SqueezeExcite, Trunk, scaled
from polyfed.models.spec import ModelSpec


class Row(NamedTuple):
    """Hyperparameters of one stage."""

    fused: bool
    factor: int  # expansion factor
    stride: int  # of the first block
    outputs: int
    repeats: int


ROWS = (
    Row(True, 1, 1, 24, 2),
    Row(True, 4, 2, 48, 4),
    Row(True, 4, 2, 64, 4),
    Row(False, 4, 2, 128, 6),
    Row(False, 6, 1, 160, 9),
    Row(False, 6, 2, 256, 15),
)


class EfficientNetV2S(Trunk):
    """A stem, six stages, and a final 1x1 convolution."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        width, norm = spec.width, spec.norm
        base = 24
        self.stem = ConvNormAct(shape[0], scaled(base, width), 3, norm=norm, stride=2, act=nn.SiLU)
        self.stages = nn.ModuleList()
        for row in ROWS:
            stage = nn.Sequential()
            for index in range(row.repeats):
                stage.append(_block(base, row, row.stride if index == 0 else 1, width, norm))
                base = row.outputs
            self.stages.append(stage)
        self.channels = scaled(1280, width)
        self.last = ConvNormAct(scaled(base, width), self.channels, 1, norm=norm, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.last(x)
        return out


def _block(base: int, row: Row, stride: int, width: float, norm: str) -> InvertedResidual:
    expanded = scaled(row.factor * base, width)
    excite = None
    if not row.fused:
        # The squeezed width is a quarter of the block's input channels, not of its expanded channels.
        excite = SqueezeExcite(expanded, scaled(base // 4, width), act=nn.SiLU, gate=nn.Sigmoid)
    return InvertedResidual(
        scaled(base, width),
        scaled(row.outputs, width),
        expanded=expanded,
        expand=row.factor != 1,
        kernel=3,
        stride=stride,
        norm=norm,
        act=nn.SiLU,
        excite=excite,
        fused=row.fused,
    )
