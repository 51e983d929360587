"""Transfer of client layers into a global layer (Eq. 3 to 5), or their average.

Layers of different shapes are compared where they overlap. A layer is a linear map. For inputs X ~ N(0, I) the
expected squared distance between the outputs of two layers is therefore the squared distance between their weights,
plus the squared distance between their biases. For a convolution this holds at every position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.methods.fedfree.layers import Layer
from polyfed.methods.fedfree.overlap import Shape, crop, overlap_shape

PSEUDO_SIZE = 8  # height and width of the pseudo-data for convolutions


@dataclass
class _Sum:
    """The sum of the layers that overlap with the global layer in the same shape."""

    weight: Tensor
    bias: Tensor | None
    layers: int = 0


class MappedLayers:
    """The client layers that are mapped to one global layer, as one running sum per shape of their overlap.

    Memory does not grow with the number of layers.
    """

    def __init__(self, target: Layer) -> None:
        self.target = target
        self.layers = 0
        self._sums: dict[tuple[Shape, bool], _Sum] = {}

    def add(self, layer: Layer) -> None:
        shape = overlap_shape(self.target.weight.shape, layer.weight.shape)
        with_bias = self.target.bias is not None and layer.bias is not None  # compared only if both layers have one
        total = self._sums.setdefault(
            (shape, with_bias),
            _Sum(
                layer.weight.new_zeros(shape, dtype=torch.float64),
                layer.weight.new_zeros(shape[0], dtype=torch.float64) if with_bias else None,
            ),
        )
        total.weight += crop(layer.weight, shape)
        if total.bias is not None and layer.bias is not None:
            total.bias += layer.bias[: shape[0]]
        total.layers += 1
        self.layers += 1

    def means(self) -> Iterator[tuple[float, Tensor, Tensor | None]]:
        """Yield, for each shape of the overlap, the fraction of all layers and their mean weight and bias."""
        for _, total in sorted(self._sums.items(), key=lambda item: item[0]):
            bias = None if total.bias is None else total.bias / total.layers
            yield total.layers / self.layers, total.weight / total.layers, bias


def average(mapped: MappedLayers) -> tuple[Tensor, Tensor | None]:
    """Return the global layer with each value replaced by its mean over the layers that have it."""
    target, means = mapped.target, list(mapped.means())
    by_tensor = [(fraction, weight) for fraction, weight, _ in means], [(f, b) for f, _, b in means if b is not None]
    averages = []
    for own, parts in zip(target.tensors, by_tensor, strict=False):
        total, weight = (own.new_zeros(own.shape, dtype=torch.float64) for _ in range(2))
        for fraction, mean in parts:
            crop(total, mean.shape).add_(mean, alpha=fraction)
            crop(weight, mean.shape).add_(fraction)
        averages.append(torch.where(weight > 0, total / weight, own.double()).to(own.dtype))
    return averages[0], averages[1] if target.bias is not None else None


def distil(
    mapped: MappedLayers, lr: float, steps: int = 1, inputs: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the global layer after gradient steps on the distance of its outputs to those of the mapped layers.

    The distance is squared, summed over channels, and averaged over layers, samples and positions. With `inputs` it
    is computed on these inputs, without it is the expectation over X ~ N(0, I). The distance to several layers has
    the same gradient as the distance to their mean.
    """
    target = mapped.target
    dtype = torch.float64 if inputs is None else inputs.dtype
    weight = target.weight.to(dtype, copy=True)
    bias = None if target.bias is None else target.bias.to(dtype, copy=True)
    means = [(fraction, w.to(dtype), None if b is None else b.to(dtype)) for fraction, w, b in mapped.means()]
    columns = [None if inputs is None else patches(inputs, target.kind, w.shape) for _, w, _ in means]
    for _ in range(steps):
        gradients = []
        for (fraction, w, b), x in zip(means, columns, strict=True):
            difference = crop(weight, w.shape) - w
            bias_difference = None if b is None or bias is None else bias[: len(b)] - b
            gradients.append((fraction, *_gradient(difference, bias_difference, x)))
        for fraction, by_weight, by_bias in gradients:  # all gradients are computed before any value changes
            crop(weight, by_weight.shape).sub_(by_weight, alpha=lr * fraction)
            if bias is not None and by_bias is not None:
                bias[: len(by_bias)].sub_(by_bias, alpha=lr * fraction)
    return weight.to(target.weight.dtype), None if target.bias is None or bias is None else bias.to(target.bias.dtype)


def _gradient(weight: Tensor, bias: Tensor | None, x: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of the mean of |weight x + bias|^2 over the columns of x; without x, of its expectation."""
    if x is None:
        return 2 * weight, None if bias is None else 2 * bias
    groups, _, columns = x.shape
    out = weight.reshape(groups, -1, x.shape[1]) @ x
    if bias is not None:
        out += bias.view(groups, -1, 1)
    by_weight = (out @ x.mT).reshape(weight.shape) * (2 / columns)
    return by_weight, None if bias is None else 2 * out.mean(2).reshape(-1)


def pseudo_data_shape(layer: Layer, batch: int, size: int = PSEUDO_SIZE) -> Shape:
    """Return the shape of a batch of inputs: rows for a linear layer, maps of at least `size` for a convolution."""
    inputs = layer.weight.shape[0 if layer.kind == "depthwise" else 1]
    if layer.kind == "linear":
        return batch, inputs
    height, width = layer.weight.shape[2:]
    return batch, inputs, max(size, height), max(size, width)


def patches(x: Tensor, kind: str, shape: Sequence[int]) -> Tensor:
    """Return the inputs of a layer as columns: [groups, values per patch, samples and positions].

    Stride is 1 and there is no padding: a stride only selects some of the positions.
    """
    if kind == "linear":
        return x[:, : shape[1]].T.unsqueeze(0)
    channels, (height, width) = shape[0 if kind == "depthwise" else 1], shape[2:]
    unfolded = x[:, :channels].unfold(2, height, 1).unfold(3, width, 1)  # [samples, channels, positions, kernel]
    columns = unfolded.permute(1, 4, 5, 0, 2, 3).reshape(channels, height * width, -1)
    return columns if kind == "depthwise" else columns.flatten(0, 1).unsqueeze(0)
