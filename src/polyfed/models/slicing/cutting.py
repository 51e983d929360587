"""Finds out where a sub-model lies in a big model, by comparing the two module by module.

Both are built by the same code, so that their parts have the same names; what the smaller one lacks is depth, and
an axis on which it is shorter is width. Which positions of an axis are kept depends on its two lengths only, except
where channels are flattened into features, belong to attention heads, or come from branches side by side. In a
module of the user's own, branches and shuffled channels are noticed only where the lengths give them away.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.googlenet import Inception
from polyfed.models.registry import build
from polyfed.models.slicing.compatibility import (
    Lengths,
    check_channels,
    check_features,
    check_same_kind,
    lengths,
    refuse,
)
from polyfed.models.slicing.index import Index, Rule, prefix
from polyfed.models.spec import ModelSpec
from polyfed.models.split import SplitModel
from polyfed.models.vit import Attention

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def skeleton(spec: ModelSpec | str, *, shape: tuple[int, ...], classes: int) -> SplitModel:
    """The model without memory for its weights, on the meta device: all that is needed to cut."""
    with torch.device("meta"):
        return build(spec, shape=shape, classes=classes)


def cut_specs(
    big: ModelSpec | str,
    small: ModelSpec | str,
    *,
    shape: tuple[int, ...],
    classes: int,
    rule: Rule = prefix,
) -> dict[str, Index]:
    """`cut` for two descriptions."""
    whole, part = (skeleton(spec, shape=shape, classes=classes) for spec in (big, small))
    return cut(whole, part, rule)


def cut(big: nn.Module, small: nn.Module, rule: Rule = prefix) -> dict[str, Index]:
    """Where every parameter and buffer of `small` lies in `big`; InputError if it is not a slice of it.

    The input channels and the rows of the classifier are never cut: both models have the same number of them.
    """
    walk = _Walk(big, small, rule)
    narrower = any(name in walk.whole and walk.whole[name].shape != part.shape for name, part in walk.part.items())
    check_features(big, small, narrower=narrower)
    walk.module("", big, small)
    walk.loose_tensors()
    return {name: walk.places[name] for name in walk.part}


class _Walk:
    """Goes through both models at once, in the order in which their parts were defined."""

    def __init__(self, big: nn.Module, small: nn.Module, rule: Rule) -> None:
        self.whole, self.part = big.state_dict(), small.state_dict()
        self.places: dict[str, Index] = {}
        self._rule = rule
        self._vectors: dict[tuple[Lengths, int], Tensor] = {}  # one for equal lengths and heads, shared by all axes
        self._produced: set[Lengths] = set()  # lengths of the outputs met so far
        self._channels: Lengths | None = None  # of the convolution before; None after a linear layer
        self._flattens = False  # whether a Flatten came since
        self._joined: tuple[Lengths, Tensor] | None = None  # the outputs of the branches before, side by side
        self._heads: dict[tuple[str, int], int] = {}  # (tensor, axis) that is made of so many heads
        self._loose: list[str] = []

    def module(self, name: str, big: nn.Module, small: nn.Module) -> None:
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
                self.module(inner, children[child], part)
            elif part.state_dict():
                raise InputError(
                    f"The sub-model is not a slice of the server model: its part '{inner}' ({type(part).__name__}) "
                    "does not exist there."
                )
        if isinstance(big, Inception) and isinstance(small, Inception):
            self._join(big, small)

    def loose_tensors(self) -> None:
        """Parameters outside of layers (class token, positions): every axis must be one that a layer produces."""
        for tensor in self._loose:
            pairs = lengths(tensor, self.whole[tensor], self.part[tensor])
            self.places[tensor] = tuple(self._produced_before(tensor, pair) for pair in pairs)

    def _own_tensors(self, name: str, big: nn.Module, small: nn.Module) -> list[str]:
        """Full names of what the module itself holds, without its children and what is not saved."""
        start = f"{name}." if name else ""
        both: list[list[str]] = []
        for module, state in ((big, self.whole), (small, self.part)):
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            both.append([start + tensor for tensor, _ in own if start + tensor in state])
        different = set(both[0]) ^ set(both[1])
        if different:
            raise InputError(
                f"The sub-model is not a slice of the server model: only one of them has the tensor "
                f"'{min(different)}'."
            )
        return both[1]

    def _tensor(self, tensor: str, big: nn.Module, small: nn.Module) -> None:
        pairs = lengths(tensor, self.whole[tensor], self.part[tensor])
        if any(whole != part for whole, part in pairs):
            check_channels(tensor, big, small)
        if isinstance(small, (*CONVOLUTIONS, nn.Linear)):
            self.places[tensor] = self._layer(tensor, pairs, small)
        elif isinstance(small, NORMS):
            self.places[tensor] = tuple(self._produced_before(tensor, pair) for pair in pairs)
        else:
            self._loose.append(tensor)

    def _layer(self, tensor: str, pairs: list[Lengths], small: nn.Module) -> Index:
        """(out,) for a bias, (out, in, kernel...) for a weight; kernels were compared before."""
        out = self._kept(pairs[0], self._heads.get((tensor, 0), 1))
        if len(pairs) == 1:
            return (out,)
        inputs = self._inputs(tensor, pairs[1], small)
        self._produced.add(pairs[0])
        self._channels = None if isinstance(small, nn.Linear) else pairs[0]
        self._flattens = False
        return (out, inputs, *[None] * (len(pairs) - 2))

    def _inputs(self, tensor: str, pair: Lengths, small: nn.Module) -> Tensor | None:
        """The in axis is the out axis of the producer (B0)."""
        heads = self._heads.get((tensor, 1))
        if heads is not None:
            return self._kept(pair, heads)
        if self._joined is not None and pair == self._joined[0]:
            return None if pair[0] == pair[1] else self._joined[1]
        if isinstance(small, nn.Linear) and self._channels is not None and pair != self._channels:
            pixels = pair[0] // self._channels[0]
            is_multiple = pixels > 1 and pair == (pixels * self._channels[0], pixels * self._channels[1])
            if is_multiple and (self._flattens or pair not in self._produced):
                return _each_times(self._kept(self._channels), pixels)
        return self._produced_before(tensor, pair)

    def _produced_before(self, tensor: str, pair: Lengths) -> Tensor | None:
        if pair[0] != pair[1] and pair not in self._produced:
            refuse(
                tensor,
                self.whole[tensor],
                self.part[tensor],
                f"no layer before was cut from {pair[0]} to {pair[1]} outputs",
            )
        return self._kept(pair)

    def _kept(self, pair: Lengths, heads: int = 1) -> Tensor | None:
        """The rule's positions; inside of each head, where an axis is made of heads."""
        if pair[0] == pair[1]:
            return None
        if (pair, heads) not in self._vectors:
            size, kept = pair[0] // heads, pair[1] // heads
            self._vectors[pair, heads] = (
                torch.arange(heads, device="cpu")[:, None] * size + self._rule(size, kept)
            ).flatten()
        return self._vectors[pair, heads]

    def _mark_heads(self, name: str, heads: int) -> None:
        for layer in ("query", "key", "value"):
            self._heads[f"{name}.{layer}.weight", 0] = heads
            self._heads[f"{name}.{layer}.bias", 0] = heads
        self._heads[f"{name}.out.weight", 1] = heads

    def _join(self, big: Inception, small: Inception) -> None:
        """What comes out of an inception module: the kept outputs of its four branches, one after the other."""
        vectors: list[Tensor] = []
        start = kept = 0
        for whole, part in zip(_branch_outputs(big), _branch_outputs(small), strict=True):
            vector = self._kept((whole, part))
            vectors.append(start + (torch.arange(whole, device="cpu") if vector is None else vector))
            start, kept = start + whole, kept + part
        self._joined = (start, kept), torch.cat(vectors)


def _each_times(channels: Tensor | None, pixels: int) -> Tensor | None:
    """The positions of these channels' pixels after flattening, channel by channel."""
    if channels is None:
        return None
    return (channels[:, None] * pixels + torch.arange(pixels, device="cpu")).flatten()


def _branch_outputs(module: Inception) -> list[int]:
    """Outputs of the last convolution of every branch, in the order in which they are put side by side."""
    branches = (module.one, module.three, module.five, module.pool)
    return [
        [part for part in branch.modules() if isinstance(part, nn.Conv2d)][-1].out_channels for branch in branches
    ]
