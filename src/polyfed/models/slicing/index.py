"""A slice as plain data: for every tensor of the sub-model, which positions of the big model's tensor it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from polyfed.errors import InputError, nearest

# One entry for each axis: the positions kept, in the sub-model's order, or None for the whole axis.
Index = tuple[Tensor | None, ...]
# By tensor name. Depth slicing is absence: what the sub-model does not have is not in it.
Cut = Mapping[str, Index]
# Which positions of an axis of `size` are kept, given (size, kept). Every axis of equal sizes gets the same answer,
# so that the layers of a residual stage, which all have the same size, keep the same channels (T6).
Rule = Callable[[int, int], Tensor]


def prefix(size: int, kept: int) -> Tensor:
    """The leading positions (HeteroFL, ScaleFL): a smaller slice lies within every larger one."""
    return torch.arange(kept, device="cpu")


def window(offset: int) -> Rule:
    """Positions s, s+1, ... around the circle with s = offset mod size (FedRolex; the offset is the round)."""

    def rolled(size: int, kept: int) -> Tensor:
        return (torch.arange(kept, device="cpu") + offset % size) % size

    return rolled


def drawn(generator: torch.Generator) -> Rule:
    """Random positions in ascending order (Federated Dropout); one draw for each size, however often it occurs."""
    orders: dict[int, Tensor] = {}

    def sampled(size: int, kept: int) -> Tensor:
        if size not in orders:
            orders[size] = torch.randperm(size, generator=generator, device="cpu")
        return orders[size][:kept].sort().values

    return sampled


def select(tensor: Tensor, index: Index) -> Tensor:
    """The positions of one tensor, always as a copy."""
    part = tensor
    for axis, kept in enumerate(index):
        if kept is not None:
            part = part.index_select(axis, kept.to(tensor.device))
    return part.detach().clone() if part is tensor else part.detach()


def region(index: Index, device: torch.device) -> tuple[Tensor | slice, ...]:
    """What to write between the brackets to address these positions in place.

    Only one run of neighbouring axes may hold vectors: torch would move axes that a slice keeps apart to the front.
    """
    cut_axes = [axis for axis, kept in enumerate(index) if kept is not None]
    if len(cut_axes) != (cut_axes[-1] - cut_axes[0] + 1 if cut_axes else 0):
        raise InputError(f"A slice cuts axes {cut_axes} of a tensor, allowed are neighbouring axes.")
    places: list[Tensor | slice] = []
    for axis, kept in enumerate(index):
        if kept is None:
            places.append(slice(None))
        else:
            later = sum(1 for other in cut_axes if other > axis)
            places.append(kept.to(device).reshape(-1, *[1] * later))
    return tuple(places)


def extract(weights: Mapping[str, Tensor], cut: Cut) -> dict[str, Tensor]:
    """The sub-model's weights, copied out of the big model's."""
    for name in cut:
        if name not in weights:
            raise InputError(f"The big model has no tensor '{name}' to slice: {nearest(name, weights)}.")
    return {name: select(weights[name], index) for name, index in cut.items()}


def only_rows(
    weights: Mapping[str, Tensor], cut: Cut, names: Iterable[str], rows: Tensor
) -> tuple[dict[str, Tensor], dict[str, Index]]:
    """A reply and its cut without the rows of the named tensors that are not in `rows`.

    So the classifier rows of classes that a client does not have stay out of the mean (B0, label masking).
    """
    fewer_weights, fewer_places = dict(weights), dict(cut)
    for name in names:
        if name not in weights or name not in cut:
            raise InputError(f"The slice has no tensor '{name}' to take rows of: {nearest(name, cut)}.")
        first, *others = cut[name]
        fewer_weights[name] = weights[name].index_select(0, rows.to(weights[name].device))
        fewer_places[name] = (rows if first is None else first[rows], *others)
    return fewer_weights, fewer_places
