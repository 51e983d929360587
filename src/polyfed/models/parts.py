"""What stands around a trunk: input normalisation, pooling, feature adapters and heads."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.errors import InputError
from polyfed.models.blocks import Trunk
from polyfed.models.spec import ModelSpec, hidden_layer


class Normalise(nn.Module):
    """(x - mean) / std per channel, inside the model so that everything outside works on [0, 1] pixels."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> None:
        super().__init__()
        # Not persistent: part of the description, not of what is learnt, sent or averaged.
        self.register_buffer("mean", _per_channel("mean", mean, channels), persistent=False)
        self.register_buffer("std", _per_channel("std", std, channels), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def _per_channel(what: str, values: tuple[float, ...], channels: int) -> Tensor:
    if len(values) not in (1, channels):
        raise InputError(
            f"Input normalisation has {len(values)} values for {what}, but images have {channels} channels; "
            f"allowed are 1 or {channels} values."
        )
    return torch.tensor(values).expand(channels).reshape(channels, 1, 1).clone()


class PoolInput(nn.Module):
    """Average-pools images that are larger than `size`; smaller ones pass."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.adaptive_avg_pool2d(x, (min(self.size, height), min(self.size, width)))


class PoolFeatures(nn.Module):
    """Adaptive average pooling of the flat feature: narrower repeats values, wider averages them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool1d(width)

    def forward(self, z: Tensor) -> Tensor:
        # (N, 1, F), not (F,) channels of a single sample, so that a batch of one means the same.
        pooled: Tensor = self.pool(z.unsqueeze(1))
        return pooled.squeeze(1)


def make_backbone(trunk: Trunk, spec: ModelSpec, shape: tuple[int, int, int], dropout: float) -> nn.Module:
    """Normalise, trunk, pool, dropout, adapter: the parts that are not needed are left out."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["normalise"] = Normalise(spec.mean, spec.std, shape[0])
    if spec.pool_input is not None:
        parts["pool_input"] = PoolInput(spec.pool_input)
    parts["trunk"] = trunk
    rate = dropout if spec.dropout is None else spec.dropout
    keeps_map = spec.feature_map is not None and trunk.spatial and spec.adapter in ("auto", "conv_pool")
    if trunk.spatial and not keeps_map:
        parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if rate > 0:
        parts["dropout"] = nn.Dropout(rate)
    if keeps_map and spec.feature_map is not None:
        parts["adapter"] = conv_pool(trunk.channels, spec.feature_map)
    else:
        adapter = flat_adapter(spec, trunk.channels)
        if adapter is not None:
            parts["adapter"] = adapter
    return nn.Sequential(parts)


def make_flat_backbone(trunk: Trunk, spec: ModelSpec) -> nn.Module:
    """Return trunk, dropout and adapter for inputs that are not pictures. The trunk normalises its inputs itself."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(trunk=trunk)
    if spec.dropout:
        parts["dropout"] = nn.Dropout(spec.dropout)
    adapter = flat_adapter(spec, trunk.channels)
    if adapter is not None:
        parts["adapter"] = adapter
    return nn.Sequential(parts)


def conv_pool(channels: int, feature_map: tuple[int, int, int]) -> nn.Sequential:
    """1x1 convolution to c0 channels, adaptive average pooling to h0 x w0, flatten."""
    out, height, width = feature_map
    return nn.Sequential(nn.Conv2d(channels, out, 1), nn.AdaptiveAvgPool2d((height, width)), nn.Flatten())


def feature_width(spec: ModelSpec, own: int) -> int:
    """How wide the features are, given the width a model has by itself."""
    if spec.feature_map is not None:
        channels, height, width = spec.feature_map
        return channels * height * width
    return own if spec.feature_dim is None else spec.feature_dim


def flat_adapter(spec: ModelSpec, own: int) -> nn.Module | None:
    """What brings flat features of width `own` to the width that was asked for; None where nothing is needed."""
    wanted = feature_width(spec, own)
    if spec.adapter == "conv_pool":
        raise InputError(
            f"Model '{spec.name}': adapter conv_pool needs a convolutional feature map, but this model's features "
            "are flat; allowed are pool1d and linear."
        )
    if spec.adapter == "linear" or (spec.adapter == "auto" and spec.feature_map is not None):
        return nn.Linear(own, wanted)
    return None if wanted == own else PoolFeatures(wanted)


def make_head(head: str | None, features: int, classes: int) -> nn.Module:
    """One linear layer, or one hidden layer in between."""
    hidden = hidden_layer(head)
    if hidden is None:
        return nn.Linear(features, classes)
    kind, units = hidden
    act = nn.ReLU() if kind == "relu" else nn.Tanh()
    return nn.Sequential(nn.Linear(features, units), act, nn.Linear(units, classes))
