"""The common part of two weight tensors of the same kind but different shapes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Shape = tuple[int, ...]


def overlap_shape(a: Sequence[int], b: Sequence[int]) -> Shape:
    """Return the smaller of two sizes along every axis."""
    return tuple(min(pair) for pair in zip(a, b, strict=True))


def crop(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a view of a weight with the given shape: its first outputs and inputs, and the centre of its kernels."""
    for axis, size in enumerate(shape):
        start = (tensor.shape[axis] - size) // 2 if axis >= 2 else 0
        tensor = tensor.narrow(axis, start, size)
    return tensor
