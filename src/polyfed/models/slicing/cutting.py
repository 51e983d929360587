"""Positions of a sub-model in a larger model, from a module-by-module comparison of the two.

The same code builds both models, so their modules have the same names. Modules that the sub-model lacks are depth
slicing; axes that are shorter are width slicing. The positions on an axis depend only on its two lengths, except
where channels are flattened into features, belong to attention heads, or come from concatenated branches. In custom
modules, branches and shuffled channels are detected only if the axis lengths differ.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.catalogue import ARCHITECTURES
from polyfed.models.googlenet import Inception
from polyfed.models.meta import meta_device
from polyfed.models.registry import build
from polyfed.models.slicing.compatibility import (
    Lengths,
    axis_lengths,
    check_channels,
    check_features,
    check_same_kind,
    raise_shape_mismatch,
)
from polyfed.models.slicing.index import Index, Rule, prefix
from polyfed.models.spec import ModelSpec
from polyfed.models.split import SplitModel
from polyfed.models.vit import Attention

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def skeleton(spec: ModelSpec | str, *, shape: tuple[int, ...], classes: int) -> SplitModel:
    """Return the model on the meta device, without memory for its weights. This is enough for `cut`.

    The skeletons of polyfed's own architectures are kept: callers must not modify them.
    """
    spec = ModelSpec.parse(spec) if isinstance(spec, str) else spec
    make = _own_skeleton if spec.name in ARCHITECTURES else _build_skeleton
    return make(spec, tuple(shape), classes)


def _build_skeleton(spec: ModelSpec, shape: tuple[int, ...], classes: int) -> SplitModel:
    with meta_device():
        return build(spec, shape=shape, classes=classes)


_own_skeleton = lru_cache(maxsize=256)(_build_skeleton)


def cut_specs(
    big: ModelSpec | str,
    small: ModelSpec | str,
    *,
    shape: tuple[int, ...],
    classes: int,
    rule: Rule = prefix,
) -> dict[str, Index]:
    """Call `cut` for the models of two specs."""
    whole, part = (skeleton(spec, shape=shape, classes=classes) for spec in (big, small))
    return cut(whole, part, rule)


def cut(big: nn.Module, small: nn.Module, rule: Rule = prefix) -> dict[str, Index]:
    """Return the positions in `big` of every parameter and buffer of `small`.

    Input channels and classifier rows are never cut, because both models have the same number of them. Raises
    InputError if `small` is not a slice of `big`.
    """
    matcher = _SliceMatcher(big, small, rule)
    whole = matcher.whole
    narrower = any(name in whole and whole[name].shape != part.shape for name, part in matcher.part.items())
    check_features(big, small, narrower=narrower)
    matcher.visit("", big, small)
    matcher.place_standalone()
    return {name: matcher.indices[name] for name in matcher.part}


class _SliceMatcher:
    """Parallel traversal of both models, in the order in which their modules were defined."""

    def __init__(self, big: nn.Module, small: nn.Module, rule: Rule) -> None:
        self.whole, self.part = big.state_dict(), small.state_dict()
        self.indices: dict[str, Index] = {}
        self._rule = rule
        self._position_cache: dict[tuple[Lengths, int], Tensor] = {}  # by axis lengths and number of heads
        self._output_lengths: set[Lengths] = set()  # output lengths of all layers visited so far
        self._channels: Lengths | None = None  # outputs of the previous convolution; None after a linear layer
        self._flattens = False  # whether a Flatten followed the previous layer
        self._joined: tuple[Lengths, Tensor] | None = None  # concatenated outputs of the previous branches
        self._heads: dict[tuple[str, int], int] = {}  # number of heads on this (tensor, axis)
        self._standalone: list[str] = []  # parameters outside of layers

    def visit(self, name: str, big: nn.Module, small: nn.Module) -> None:
        check_same_kind(name, big, small)
        if isinstance(small, Attention):
            self._mark_heads(name, small.heads)
        self._flattens |= isinstance(small, nn.Flatten)
        for tensor in self._own_tensors(name, big, small):
            self._tensor(tensor, big, small)
        children = dict(big.named_children())
        for child, part in small.named_children():
            inner = f"{name}.{child}" if name else child
            if child in children:
                self.visit(inner, children[child], part)
            elif part.state_dict():
                raise InputError(
                    f"The sub-model is not a slice of the server model: its part '{inner}' ({type(part).__name__}) "
                    "does not exist there."
                )
        if isinstance(big, Inception) and isinstance(small, Inception):
            self._join(big, small)

    def place_standalone(self) -> None:
        """Place parameters outside of layers (class token, positions). A layer must produce each axis that is cut."""
        for tensor in self._standalone:
            pairs = axis_lengths(tensor, self.whole[tensor], self.part[tensor])
            self.indices[tensor] = tuple(self._produced_before(tensor, pair) for pair in pairs)

    def _own_tensors(self, name: str, big: nn.Module, small: nn.Module) -> list[str]:
        """Return the full names of the module's own saved tensors, without those of its children."""
        start = f"{name}." if name else ""
        names: list[list[str]] = []
        for module, state in ((big, self.whole), (small, self.part)):
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            names.append([start + tensor for tensor, _ in own if start + tensor in state])
        different = set(names[0]) ^ set(names[1])
        if different:
            raise InputError(
                f"The sub-model is not a slice of the server model: only one of them has the tensor "
                f"'{min(different)}'."
            )
        return names[1]

    def _tensor(self, tensor: str, big: nn.Module, small: nn.Module) -> None:
        pairs = axis_lengths(tensor, self.whole[tensor], self.part[tensor])
        if any(whole != part for whole, part in pairs):
            check_channels(tensor, big, small)
        if isinstance(small, (*CONVOLUTIONS, nn.Linear)):
            self.indices[tensor] = self._layer(tensor, pairs, small)
        elif isinstance(small, NORMS):
            self.indices[tensor] = tuple(self._produced_before(tensor, pair) for pair in pairs)
        else:
            self._standalone.append(tensor)

    def _layer(self, tensor: str, pairs: list[Lengths], small: nn.Module) -> Index:
        """Return the index of a bias (out,) or a weight (out, in, kernel...). Kernels are never cut."""
        out = self._positions(pairs[0], self._heads.get((tensor, 0), 1))
        if len(pairs) == 1:
            return (out,)
        inputs = self._inputs(tensor, pairs[1], small)
        self._output_lengths.add(pairs[0])
        self._channels = None if isinstance(small, nn.Linear) else pairs[0]
        self._flattens = False
        return (out, inputs, *[None] * (len(pairs) - 2))

    def _inputs(self, tensor: str, pair: Lengths, small: nn.Module) -> Tensor | None:
        """Return the positions on the input axis: the output positions of the layer that produces the input."""
        heads = self._heads.get((tensor, 1))
        if heads is not None:
            return self._positions(pair, heads)
        if self._joined is not None and pair == self._joined[0]:
            return None if pair[0] == pair[1] else self._joined[1]
        if isinstance(small, nn.Linear) and self._channels is not None and pair != self._channels:
            pixels = pair[0] // self._channels[0]
            is_multiple = pixels > 1 and pair == (pixels * self._channels[0], pixels * self._channels[1])
            if is_multiple and (self._flattens or pair not in self._output_lengths):
                return _flattened_positions(self._positions(self._channels), pixels)
        return self._produced_before(tensor, pair)

    def _produced_before(self, tensor: str, pair: Lengths) -> Tensor | None:
        """Return the positions on an axis that an earlier layer produces; raise InputError if none does."""
        if pair[0] != pair[1] and pair not in self._output_lengths:
            raise_shape_mismatch(
                tensor,
                self.whole[tensor],
                self.part[tensor],
                f"no earlier layer is cut from {pair[0]} to {pair[1]} outputs",
            )
        return self._positions(pair)

    def _positions(self, pair: Lengths, heads: int = 1) -> Tensor | None:
        """Return the positions that the rule selects, within each head if the axis consists of attention heads."""
        if pair[0] == pair[1]:
            return None
        if (pair, heads) not in self._position_cache:
            size, count = pair[0] // heads, pair[1] // heads
            self._position_cache[pair, heads] = (
                torch.arange(heads, device="cpu")[:, None] * size + self._rule(size, count)
            ).flatten()
        return self._position_cache[pair, heads]

    def _mark_heads(self, name: str, heads: int) -> None:
        """Record which axes of an attention module consist of heads."""
        for layer in ("query", "key", "value"):
            self._heads[f"{name}.{layer}.weight", 0] = heads
            self._heads[f"{name}.{layer}.bias", 0] = heads
        self._heads[f"{name}.out.weight", 1] = heads

    def _join(self, big: Inception, small: Inception) -> None:
        """Record the output positions of an inception module: those of its four branches, concatenated."""
        positions: list[Tensor] = []
        whole_total = part_total = 0
        for whole, part in zip(_branch_outputs(big), _branch_outputs(small), strict=True):
            branch = self._positions((whole, part))
            positions.append(whole_total + (torch.arange(whole, device="cpu") if branch is None else branch))
            whole_total, part_total = whole_total + whole, part_total + part
        self._joined = (whole_total, part_total), torch.cat(positions)


def _flattened_positions(channels: Tensor | None, pixels: int) -> Tensor | None:
    """Return the positions of all pixels of these channels after flattening."""
    if channels is None:
        return None
    return (channels[:, None] * pixels + torch.arange(pixels, device="cpu")).flatten()


def _branch_outputs(module: Inception) -> list[int]:
    """Return the output channels of every branch, in the order of concatenation."""
    branches = (module.one, module.three, module.five, module.pool)
    return [
        [part for part in branch.modules() if isinstance(part, nn.Conv2d)][-1].out_channels for branch in branches
    ]
