"""Checks that a sub-model is a slice of a larger model: same modules and settings, compatible channels and shapes."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.blocks import Trunk
from polyfed.models.parts import PoolFeatures
from polyfed.models.shufflenet import ShuffleNetV2

Lengths = tuple[int, int]  # length of one axis in the big model and in the sub-model

# Settings that change what a module computes and must be equal in both models (attribute names).
COMPARED_ATTRIBUTES = (
    "adds_input",
    "classes",
    "dilation",
    "heads",
    "kernel_size",
    "output_size",
    "padding",
    "patch",
    "size",
    "stride",
)


def check_same_kind(name: str, big: nn.Module, small: nn.Module) -> None:
    """Raise InputError unless both modules have the same class and settings. Widths may differ."""
    if type(big) is not type(small):
        raise InputError(
            f"The sub-model is not a slice of the server model: its part '{name or 'model'}' is a "
            f"{type(small).__name__}, the server model's is a {type(big).__name__}."
        )
    for attribute in COMPARED_ATTRIBUTES:
        expected, actual = (getattr(module, attribute, None) for module in (big, small))
        if isinstance(actual, int | str | tuple) and expected != actual:
            raise InputError(
                f"The sub-model is not a slice of the server model: its part '{name or 'model'}' has {attribute} "
                f"{actual}, the server model's has {expected}."
            )


def check_features(big: nn.Module, small: nn.Module, *, narrower: bool) -> None:
    """Raise InputError if pooling or shuffling would mix up the channel positions of the two models."""
    parts = (*big.modules(), *small.modules())
    # A model with fewer stages may output fewer channels. After pooling, no tensor shape shows the difference.
    widths = [[part.channels for part in model.modules() if isinstance(part, Trunk)] for model in (big, small)]
    if (narrower or widths[0] != widths[1]) and any(isinstance(part, PoolFeatures) for part in parts):
        raise InputError(
            "The sub-model and the server model pool features of different widths to a common width, so equal "
            "positions do not correspond. Remove feature_dim or use adapter linear."
        )
    if narrower and any(isinstance(part, ShuffleNetV2) for part in parts):
        raise InputError(
            "The sub-model is narrower than the server model, but ShuffleNetV2 shuffles its channels and cannot be "
            "sliced by width. Use the full width."
        )


def axis_lengths(name: str, whole: Tensor, part: Tensor) -> list[Lengths]:
    """Return the two lengths of every axis; raise InputError if the sub-model is longer on any axis."""
    if whole.ndim != part.ndim or any(p > w for w, p in zip(whole.shape, part.shape, strict=True)):
        raise_shape_mismatch(name, whole, part, "no axis of a slice may be longer")
    return list(zip(whole.shape, part.shape, strict=True))


def check_channels(name: str, big: nn.Module, small: nn.Module) -> None:
    """Raise InputError if a tensor that is shorter on some axis would break up groups of channels."""
    if isinstance(big, nn.GroupNorm) and isinstance(small, nn.GroupNorm):
        if small.num_channels % big.num_groups != 0:
            raise InputError(
                f"The group norm of '{name}' keeps {small.num_channels} of {big.num_channels} channels, which is "
                f"not divisible by its {big.num_groups} groups. Use a multiple of {big.num_groups} or another norm."
            )
    elif isinstance(small, nn.Conv1d | nn.Conv2d | nn.Conv3d) and not _full_or_depthwise(big, small):
        raise InputError(
            f"The convolution of '{name}' has {big.groups} groups of channels, so it cannot be sliced by width. "
            "Use one group, or one channel per group."
        )


def _full_or_depthwise(big: nn.Module, small: nn.Module) -> bool:
    """Return whether both convolutions are full (one group) or both are depthwise (one channel per group)."""
    both = (big, small)
    return all(module.groups == 1 for module in both) or all(
        module.groups == module.in_channels == module.out_channels for module in both
    )


def raise_shape_mismatch(name: str, whole: Tensor, part: Tensor, reason: str) -> NoReturn:
    """Raise InputError for a tensor whose shape does not fit."""
    raise InputError(
        f"The sub-model is not a slice of the server model: its tensor '{name}' has shape {tuple(part.shape)}, the "
        f"server model's has {tuple(whole.shape)}, and {reason}."
    )
