"""Moving what layers have learnt into another layer of the same kind but perhaps of another shape.

Layers are compared where they overlap: the leading outputs and inputs of both, and the middle of their kernels. A
layer is a linear map, so that for inputs X ~ N(0, I) the expected squared distance between the outputs of two is the
squared distance between their weights, plus that between their biases; at a convolution this holds per position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyfed.methods.fedfree.layers import Layer

Shape = tuple[int, ...]


def overlap(a: Sequence[int], b: Sequence[int]) -> Shape:
    """The size that two shapes have in common along every axis."""
    return tuple(min(pair) for pair in zip(a, b, strict=True))


def block(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """A view of the part of a tensor that has the given sizes: leading outputs and inputs, the middle of kernels."""
    for axis, size in enumerate(sizes):
        start = (tensor.shape[axis] - size) // 2 if axis >= 2 else 0
        tensor = tensor.narrow(axis, start, size)
    return tensor


def shape_match(a: Sequence[int], b: Sequence[int]) -> float:
    """Volume of the overlap over that of the union: 1 for equal shapes."""
    common = torch.Size(overlap(a, b)).numel()
    return common / (torch.Size(a).numel() + torch.Size(b).numel() - common)


def projected(
    own: Tensor, received: Tensor, how: Literal["flat", "block"] = "flat", rest: Literal["retain", "zero"] = "retain"
) -> Tensor:
    """`own` with received numbers in their places; `rest` says what happens to places without one.

    Flat: number r of one to number r of the other, in row-major order. Block: where the two overlap.
    """
    result = own.clone(memory_format=torch.contiguous_format)
    if rest == "zero":
        result.zero_()
    if how == "flat":
        size = min(own.numel(), received.numel())
        result.view(-1)[:size] = received.reshape(-1)[:size]
    else:
        common = overlap(own.shape, received.shape)
        block(result, common).copy_(block(received, common))
    return result


def trimmed(tensor: Tensor, like: Sequence[int], how: Literal["flat", "block"] = "flat") -> Tensor:
    """The numbers of a tensor that `projected` uses at a layer of another shape."""
    if how == "flat":
        return tensor.reshape(-1)[: torch.Size(like).numel()]
    return block(tensor, overlap(tensor.shape, like))


@dataclass
class _Mean:
    """The mean of layers that overlap alike with the one they are gathered for."""

    weight: Tensor
    bias: Tensor | None
    layers: int = 0


class Gathered:
    """Layers gathered for one global layer, as running means by overlap: memory does not grow with their number."""

    def __init__(self, target: Layer) -> None:
        self.target = target
        self.layers = 0
        self._sums: dict[tuple[Shape, bool], _Mean] = {}

    def add(self, layer: Layer) -> None:
        sizes = overlap(self.target.weight.shape, layer.weight.shape)
        with_bias = self.target.bias is not None and layer.bias is not None  # on one side only: not compared
        held = self._sums.setdefault(
            (sizes, with_bias),
            _Mean(
                torch.zeros(sizes, dtype=torch.float64),
                torch.zeros(sizes[0], dtype=torch.float64) if with_bias else None,
            ),
        )
        held.weight += block(layer.weight, sizes)
        if held.bias is not None and layer.bias is not None:
            held.bias += layer.bias[: sizes[0]]
        held.layers += 1
        self.layers += 1

    def means(self) -> Iterator[tuple[float, Tensor, Tensor | None]]:
        """By overlap, in a fixed order: the share of all layers, and their mean weight and bias."""
        for _, held in sorted(self._sums.items(), key=lambda item: item[0]):
            bias = None if held.bias is None else held.bias / held.layers
            yield held.layers / self.layers, held.weight / held.layers, bias


def averaged(gathered: Gathered) -> tuple[Tensor, Tensor | None]:
    """Every number of the target replaced by the mean over the layers that have it; kept where none does."""
    target = gathered.target
    mixed = []
    for own, parts in zip(target.tensors, _columns(gathered), strict=False):
        total, weight = torch.zeros(own.shape, dtype=torch.float64), torch.zeros(own.shape, dtype=torch.float64)
        for share, mean in parts:
            block(total, mean.shape).add_(mean, alpha=share)
            block(weight, mean.shape).add_(share)
        mixed.append(torch.where(weight > 0, total / weight, own.double()).to(own.dtype))
    return mixed[0], mixed[1] if target.bias is not None else None


def _columns(gathered: Gathered) -> tuple[list[tuple[float, Tensor]], list[tuple[float, Tensor]]]:
    means = list(gathered.means())
    return [(s, w) for s, w, _ in means], [(s, b) for s, _, b in means if b is not None]


def transferred(
    gathered: Gathered, lr: float, steps: int = 1, probes: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The target after steps down the mean squared distance of its outputs to those of the gathered layers.

    With `probes` the outputs are those for these inputs, summed over channels, mean over samples and positions;
    without, in expectation over X ~ N(0, I). The distance to several layers has the gradient of that to their mean.
    """
    target = gathered.target
    dtype = torch.float64 if probes is None else probes.dtype
    weight = target.weight.to(dtype, copy=True)
    bias = None if target.bias is None else target.bias.to(dtype, copy=True)
    means = [(share, w.to(dtype), None if b is None else b.to(dtype)) for share, w, b in gathered.means()]
    seen = [None if probes is None else patches(probes, target.kind, w.shape) for _, w, _ in means]
    for _ in range(steps):
        moves = []
        for (share, w, b), x in zip(means, seen, strict=True):
            apart = block(weight, w.shape) - w
            apart_bias = None if b is None or bias is None else bias[: len(b)] - b
            moves.append((share, *_gradient(apart, apart_bias, x)))
        for share, by_weight, by_bias in moves:  # all gradients are taken before anything moves
            block(weight, by_weight.shape).sub_(by_weight, alpha=lr * share)
            if bias is not None and by_bias is not None:
                bias[: len(by_bias)].sub_(by_bias, alpha=lr * share)
    return weight.to(target.weight.dtype), None if target.bias is None or bias is None else bias.to(target.bias.dtype)


def _gradient(weight: Tensor, bias: Tensor | None, x: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Of the mean of |weight x + bias|^2 over the columns of x, or of its expectation without x."""
    if x is None:
        return 2 * weight, None if bias is None else 2 * bias
    groups, _, columns = x.shape
    out = weight.reshape(groups, -1, x.shape[1]) @ x
    if bias is not None:
        out += bias.view(groups, -1, 1)
    by_weight = (out @ x.mT).reshape(weight.shape) * (2 / columns)
    return by_weight, None if bias is None else 2 * out.mean(2).reshape(-1)


def probe_shape(layer: Layer, batch: int, size: int) -> Shape:
    """Inputs that a layer can be tried on: rows for a linear layer, maps of `size` (or its kernel) for others."""
    inputs = layer.weight.shape[0 if layer.kind == "depthwise" else 1]
    if layer.kind == "linear":
        return batch, inputs
    height, width = layer.weight.shape[2:]
    return batch, inputs, max(size, height), max(size, width)


def patches(x: Tensor, kind: str, shape: Sequence[int]) -> Tensor:
    """What a layer of a shape sees of inputs, as columns: [groups, numbers per patch, samples and positions].

    At stride 1 and without padding: a stride only chooses which positions are read.
    """
    if kind == "linear":
        return x[:, : shape[1]].T.unsqueeze(0)
    channels, (height, width) = shape[0 if kind == "depthwise" else 1], shape[2:]
    seen = x[:, :channels].unfold(2, height, 1).unfold(3, width, 1)  # [samples, channels, positions, kernel], a view
    columns = seen.permute(1, 4, 5, 0, 2, 3).reshape(channels, height * width, -1)
    return columns if kind == "depthwise" else columns.flatten(0, 1).unsqueeze(0)
