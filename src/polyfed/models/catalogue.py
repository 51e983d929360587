"""The built-in architectures by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyfed.models import (
    cnn,
    efficientnet,
    googlenet,
    mobilenet,
    resnet,
    shufflenet,
    tabular,
    text,
    time_series,
    tiny,
    vit,
)
from polyfed.models.blocks import Trunk


@dataclass(frozen=True)
class Architecture:
    """A trunk factory, the kind of input, the smallest image side, and the default dropout on the features."""

    trunk: Callable[..., Trunk]
    smallest: int = 1
    dropout: float = 0.0
    takes: str = "picture"  # or 'table', 'series', 'text'


ARCHITECTURES: dict[str, Architecture] = {
    "cnn4": Architecture(cnn.cnn4, smallest=cnn.SMALLEST_INPUT),
    "cnn-fedfree": Architecture(cnn.cnn_fedfree, smallest=cnn.SMALLEST_INPUT),
    **{name: Architecture(resnet.resnet) for name in resnet.DEPTHS},
    "googlenet": Architecture(googlenet.GoogLeNet, smallest=googlenet.SMALLEST_INPUT, dropout=googlenet.DROPOUT),
    "mobilenet-v2": Architecture(mobilenet.mobilenet_v2, dropout=mobilenet.DROPOUT_V2),
    "mobilenet-v3-small": Architecture(mobilenet.mobilenet_v3_small),
    "mobilenet-v3-large": Architecture(mobilenet.mobilenet_v3_large),
    **{name: Architecture(shufflenet.ShuffleNetV2) for name in shufflenet.SIZES},
    "efficientnet-v2-s": Architecture(efficientnet.EfficientNetV2S),
    **{name: Architecture(vit.vit) for name in vit.TABLE},
    "tiny-cnn": Architecture(tiny.TinyCNN),
    "tiny-resnet": Architecture(tiny.TinyResNet),
    "tiny-mobile": Architecture(tiny.TinyMobile),
    "tiny-mlp": Architecture(tiny.TinyMLP),
    **{name: Architecture(tiny.narrow_resnet) for name in tiny.NARROW_DEPTHS},
    "tiny-resnet-wide": Architecture(tiny.wide_resnet),
    **{name: Architecture(vit.tiny_vit) for name in vit.TINY_DEPTHS},
    **{name: Architecture(trunk, takes="table") for name, trunk in tabular.TABLE.items()},
    **{name: Architecture(trunk, takes="series") for name, trunk in time_series.SERIES.items()},
    **{name: Architecture(trunk, takes="text") for name, trunk in text.TEXT.items()},
}
