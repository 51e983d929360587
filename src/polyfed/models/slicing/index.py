"""Slice indices: for every tensor of a sub-model, its positions in the big model's tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from polyfed.errors import InputError, nearest

# One entry per axis: the selected positions, in the sub-model's order, or None for the whole axis.
Index = tuple[Tensor | None, ...]
# Indices by tensor name. Tensors of layers that the sub-model lacks (depth slicing) are missing.
Cut = Mapping[str, Index]
# A function (size, count) that selects `count` positions of an axis of `size`. Axes of equal size get the same
# positions, so that all layers of a residual stage select the same channels and can be added.
Rule = Callable[[int, int], Tensor]


def prefix(size: int, count: int) -> Tensor:
    """Select the leading positions (HeteroFL, ScaleFL). Every smaller slice is contained in the larger ones."""
    return torch.arange(count, device="cpu")


def window(offset: int) -> Rule:
    """Return the rule that selects a cyclic window from offset mod size (FedRolex; the offset is the round)."""

    def rolled(size: int, count: int) -> Tensor:
        return (torch.arange(count, device="cpu") + offset % size) % size

    return rolled


def drawn(generator: torch.Generator) -> Rule:
    """Return the rule that selects random positions in ascending order (Federated Dropout).

    Axes of equal size share one permutation.
    """
    permutations: dict[int, Tensor] = {}

    def sampled(size: int, count: int) -> Tensor:
        if size not in permutations:
            permutations[size] = torch.randperm(size, generator=generator, device="cpu")
        return permutations[size][:count].sort().values

    return sampled


def select(tensor: Tensor, index: Index) -> Tensor:
    """Return a copy of the selected positions of a tensor."""
    part = tensor
    for axis, positions in enumerate(index):
        if positions is not None:
            part = part.index_select(axis, positions.to(tensor.device))
    return part.detach().clone() if part is tensor else part.detach()


def region(index: Index, device: torch.device) -> tuple[Tensor | slice, ...]:
    """Return the subscript that addresses these positions in place: slices if all of them are consecutive.

    Only adjacent axes may have index vectors: torch moves the axes to the front if a slice separates them.
    """
    cut_axes = [axis for axis, positions in enumerate(index) if positions is not None]
    if len(cut_axes) != (cut_axes[-1] - cut_axes[0] + 1 if cut_axes else 0):
        raise InputError(f"A slice cuts axes {cut_axes} of a tensor; expected adjacent axes.")
    slices = [slice(None) if positions is None else _as_slice(positions) for positions in index]
    if all(part is not None for part in slices):
        return tuple(part for part in slices if part is not None)
    subscript: list[Tensor | slice] = []
    for axis, positions in enumerate(index):
        if positions is None:
            subscript.append(slice(None))
        else:
            later = sum(1 for other in cut_axes if other > axis)
            subscript.append(positions.to(device).reshape(-1, *[1] * later))
    return tuple(subscript)


@functools.lru_cache(maxsize=1024)  # by object: a tensor is equal to itself only, and clients share their cuts
def _as_slice(positions: Tensor) -> slice | None:
    """Return the slice that selects consecutive positions, or None if they are not consecutive."""
    count = len(positions)
    start = int(positions[0]) if count else 0
    consecutive = torch.equal(positions.cpu(), torch.arange(start, start + count, device="cpu"))
    return slice(start, start + count) if consecutive else None


def extract(weights: Mapping[str, Tensor], cut: Cut) -> dict[str, Tensor]:
    """Copy the weights of a sub-model out of those of the big model."""
    for name in cut:
        if name not in weights:
            raise InputError(f"The big model has no tensor '{name}' to slice; {nearest(name, weights)}.")
    return {name: select(weights[name], index) for name, index in cut.items()}


def only_rows(
    weights: Mapping[str, Tensor], cut: Cut, names: Iterable[str], rows: Tensor
) -> tuple[dict[str, Tensor], dict[str, Index]]:
    """Restrict the named tensors of a client's weights, and their indices, to `rows`.

    This is label masking: classifier rows of classes that a client does not have are left out of the mean.
    """
    row_weights, row_indices = dict(weights), dict(cut)
    for name in names:
        if name not in weights or name not in cut:
            raise InputError(f"The slice has no tensor '{name}' to take rows of; {nearest(name, cut)}.")
        first_axis, *other_axes = cut[name]
        row_weights[name] = weights[name].index_select(0, rows.to(weights[name].device))
        row_indices[name] = (rows if first_axis is None else first_axis[rows], *other_axes)
    return row_weights, row_indices
