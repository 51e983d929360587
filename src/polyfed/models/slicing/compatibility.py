"""What a sub-model and the big model must have in common, besides the names of their parts, for one to be a slice."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.blocks import Trunk
from polyfed.models.parts import PoolFeatures
from polyfed.models.shufflenet import ShuffleNetV2

Lengths = tuple[int, int]  # of one axis, in the big model and in the sub-model

# What a module does besides its weights, by the names under which torch and the zoo keep it.
SHARED = (
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
    """The same class with the same settings; widths may differ."""
    if type(big) is not type(small):
        raise InputError(
            f"The sub-model is not a slice of the server model: its part '{name or 'model'}' is a "
            f"{type(small).__name__}, the server model's is a {type(big).__name__}."
        )
    for attribute in SHARED:
        theirs, own = (getattr(module, attribute, None) for module in (big, small))
        if isinstance(own, int | str | tuple) and theirs != own:
            raise InputError(
                f"The sub-model is not a slice of the server model: its part '{name or 'model'}' has {attribute} "
                f"{own}, the server model's has {theirs}."
            )


def check_features(big: nn.Module, small: nn.Module, *, narrower: bool) -> None:
    """What works on all channels at once must leave each where it is."""
    parts = (*big.modules(), *small.modules())
    # Fewer stages may end on fewer channels without any tensor showing it, once they are pooled.
    ends = [[part.channels for part in model.modules() if isinstance(part, Trunk)] for model in (big, small)]
    if (narrower or ends[0] != ends[1]) and any(isinstance(part, PoolFeatures) for part in parts):
        raise InputError(
            "The sub-model has other features than the server model and pools them to a common width, so that equal "
            "positions do not mean the same; allowed is no feature_dim, or adapter linear."
        )
    if narrower and any(isinstance(part, ShuffleNetV2) for part in parts):
        raise InputError(
            "The sub-model is narrower than the server model, but ShuffleNetV2 shuffles its channels and has no "
            "slices by width; allowed is the full width."
        )


def lengths(name: str, whole: Tensor, part: Tensor) -> list[Lengths]:
    """The two lengths of every axis."""
    if whole.ndim != part.ndim or any(p > w for w, p in zip(whole.shape, part.shape, strict=True)):
        refuse(name, whole, part, "no axis of a slice may be longer")
    return list(zip(whole.shape, part.shape, strict=True))


def check_channels(name: str, big: nn.Module, small: nn.Module) -> None:
    """For a tensor that is shorter on some axis: groups of channels must survive."""
    if isinstance(big, nn.GroupNorm) and isinstance(small, nn.GroupNorm):
        if small.num_channels % big.num_groups != 0:
            raise InputError(
                f"The group norm of '{name}' keeps {small.num_channels} of {big.num_channels} channels, which its "
                f"{big.num_groups} groups do not divide; allowed are multiples of {big.num_groups}, or another norm."
            )
    elif isinstance(small, nn.Conv1d | nn.Conv2d | nn.Conv3d) and not _is_plain(big, small):
        raise InputError(
            f"The convolution of '{name}' has {big.groups} groups of channels, so that it has no slices by width; "
            "allowed are one group, or one channel in each."
        )


def _is_plain(big: nn.Module, small: nn.Module) -> bool:
    """Either every output sees all inputs, or just its own, in both models."""
    both = (big, small)
    return all(module.groups == 1 for module in both) or all(
        module.groups == module.in_channels == module.out_channels for module in both
    )


def refuse(name: str, whole: Tensor, part: Tensor, reason: str) -> NoReturn:
    raise InputError(
        f"The sub-model is not a slice of the server model: its tensor '{name}' has shape {tuple(part.shape)}, the "
        f"server model's has {tuple(whole.shape)}, and {reason}."
    )
