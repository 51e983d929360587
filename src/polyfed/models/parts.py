"""Modules around a trunk: input normalisation, pooling, feature adapters and heads."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.errors import InputError
from polyfed.models.blocks import Trunk
from polyfed.models.spec import ModelSpec, hidden_layer


class Normalise(nn.Module):
    """Input normalisation (x - mean) / std per channel. It is part of the model, so all data outside is in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> None:
        super().__init__()
        # Not persistent: the spec sets these values, so they are not sent or averaged with the weights.
        self.register_buffer("mean", _per_channel("mean", mean, channels), persistent=False)
        self.register_buffer("std", _per_channel("std", std, channels), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def _per_channel(field: str, values: tuple[float, ...], channels: int) -> Tensor:
    """Return one value per channel, shaped (channels, 1, 1); a single value applies to all channels."""
    if len(values) not in (1, channels):
        raise InputError(
            f"Input normalisation has {len(values)} values for {field}, but images have {channels} channels; "
            f"expected 1 or {channels} values."
        )
    return torch.tensor(values).expand(channels).reshape(channels, 1, 1).clone()


class PoolInput(nn.Module):
    """Average pooling of images larger than `size`. Smaller images pass unchanged."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.adaptive_avg_pool2d(x, (min(self.size, height), min(self.size, width)))


class UpscaleInput(nn.Module):
    """Nearest-neighbour enlargement of images smaller than `size`. Larger images pass unchanged.

    Its gradient is deterministic on every device, unlike that of bilinear interpolation.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.interpolate(x, size=(max(self.size, height), max(self.size, width)))


class PoolFeatures(nn.Module):
    """Adaptive average pooling of flat features. It averages wider features and repeats values of narrower ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool1d(width)

    def forward(self, z: Tensor) -> Tensor:
        # Pool (N, 1, F): a 2-D input would be read as one unbatched sample with N channels.
        pooled: Tensor = self.pool(z.unsqueeze(1))
        return pooled.squeeze(1)


def make_backbone(trunk: Trunk, spec: ModelSpec, shape: tuple[int, int, int], dropout: float) -> nn.Module:
    """Build normalisation, trunk, pooling, dropout and adapter, without the parts that the spec does not need."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["normalise"] = Normalise(spec.mean, spec.std, shape[0])
    if spec.upscale_input is not None:
        parts["upscale_input"] = UpscaleInput(spec.upscale_input)
    if spec.pool_input is not None:
        parts["pool_input"] = PoolInput(spec.pool_input)
    parts["trunk"] = trunk
    rate = dropout if spec.dropout is None else spec.dropout
    uses_map = spec.feature_map is not None and trunk.spatial and spec.adapter in ("auto", "conv_pool")
    if trunk.spatial and not uses_map:
        parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if rate > 0:
        parts["dropout"] = nn.Dropout(rate)
    if uses_map and spec.feature_map is not None:
        parts["adapter"] = conv_pool(trunk.channels, spec.feature_map)
    else:
        adapter = flat_adapter(spec, trunk.channels)
        if adapter is not None:
            parts["adapter"] = adapter
    return nn.Sequential(parts)


def make_flat_backbone(trunk: Trunk, spec: ModelSpec) -> nn.Module:
    """Build trunk, dropout and adapter for inputs that are not images. The trunk normalises its inputs itself."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(trunk=trunk)
    if spec.dropout:
        parts["dropout"] = nn.Dropout(spec.dropout)
    adapter = flat_adapter(spec, trunk.channels)
    if adapter is not None:
        parts["adapter"] = adapter
    return nn.Sequential(parts)


def conv_pool(channels: int, feature_map: tuple[int, int, int]) -> nn.Sequential:
    """Build a 1x1 convolution, adaptive average pooling to the map's height and width, and flattening."""
    out, height, width = feature_map
    return nn.Sequential(nn.Conv2d(channels, out, 1), nn.AdaptiveAvgPool2d((height, width)), nn.Flatten())


def feature_width(spec: ModelSpec, own: int) -> int:
    """Return the feature width that the spec asks for, or else the architecture's own width."""
    if spec.feature_map is not None:
        channels, height, width = spec.feature_map
        return channels * height * width
    return own if spec.feature_dim is None else spec.feature_dim


def flat_adapter(spec: ModelSpec, own: int) -> nn.Module | None:
    """Build the layer that maps flat features of width `own` to the spec's width; None if not needed."""
    width = feature_width(spec, own)
    if spec.adapter == "conv_pool":
        raise InputError(
            f"Model '{spec.name}': adapter conv_pool needs a convolutional feature map, but this model's features "
            "are flat. Use pool1d or linear."
        )
    if spec.adapter == "linear" or (spec.adapter == "auto" and spec.feature_map is not None):
        return nn.Linear(own, width)
    return None if width == own else PoolFeatures(width)


def make_head(head: str | None, features: int, classes: int) -> nn.Module:
    """Build a classifier: one linear layer, or one hidden layer and a linear layer."""
    hidden = hidden_layer(head)
    if hidden is None:
        return nn.Linear(features, classes)
    kind, units = hidden
    act = nn.ReLU() if kind == "relu" else nn.Tanh()
    return nn.Sequential(nn.Linear(features, units), act, nn.Linear(units, classes))
