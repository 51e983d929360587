"""Pairing of layers: which layers of a server model (targets) get the update of which shallower one (anchor)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NoReturn

from torch import nn

from polyfed.errors import InputError
from polyfed.models.resnet import ResidualBlock
from polyfed.models.slicing import block_names
from polyfed.models.split import SplitModel
from polyfed.models.vit import Block

Pairing = Literal["auto", "resnet_ref", "resnet_paper", "vit_norm", "generic"]
Pairs = tuple[tuple[str, str], ...]  # (target, anchor), by tensor name


def find_pairs(model: SplitModel, pairing: Pairing = "auto") -> Pairs:
    """Return targets with their anchors, in the order of the forward pass.

    Both have equal shapes, and an anchor is never a target. The result is empty if the model is too shallow, or of
    another kind than the pairing is made for.
    """
    stages = block_names(model)
    modules = dict(model.named_modules())
    if pairing == "auto":
        kinds = {type(modules[block]) for stage in stages for block in stage}
        pairing = "resnet_ref" if kinds == {ResidualBlock} else "vit_norm" if kinds == {Block} else "generic"
    return tuple(pair for stage in stages for pair in PAIRINGS[pairing](modules, stage))


def raise_no_pairs(pairing: Pairing, members: Sequence[str]) -> NoReturn:
    """Raise `InputError` because no model has two layers to mix."""
    raise InputError(
        f"server_filter.pairing '{pairing}' finds no two layers of one stage with equal shapes in "
        f"{', '.join(members)}; use a deeper server model, or pairing: generic"
    )


Modules = dict[str, nn.Module]
Stage = Sequence[str]  # names of blocks


def _weighted_layers(modules: Modules, block: str) -> list[tuple[str, nn.Module]]:
    """Return the layers of a block that have a weight, by their names in the model."""
    inner = [(name, layer) for name, layer in modules.items() if name == block or name.startswith(block + ".")]
    return [(name, layer) for name, layer in inner if isinstance(getattr(layer, "weight", None), nn.Parameter)]


def _convolutions(modules: Modules, block: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of convolution weights on a block's main path, without shortcuts."""
    return [
        (f"{name}.weight", tuple(layer.weight.shape))
        for name, layer in _weighted_layers(modules, block)
        if isinstance(layer, nn.Conv2d) and "shortcut" not in name.removeprefix(block)
    ]


def _resnet_ref(modules: Modules, stage: Stage) -> Iterator[tuple[str, str]]:
    """Released code: the last convolution of the first block is the anchor of all convolutions in later blocks."""
    first = _convolutions(modules, stage[0])
    if not first:
        return
    anchor, anchor_shape = first[-1]
    for block in stage[1:]:
        yield from ((name, anchor) for name, shape in _convolutions(modules, block) if shape == anchor_shape)


def _resnet_paper(modules: Modules, stage: Stage) -> Iterator[tuple[str, str]]:
    """Text of the paper: the first convolution whose shape occurs again is the anchor of all later ones."""
    convolutions = [pair for block in stage for pair in _convolutions(modules, block)]
    shapes = [shape for _, shape in convolutions]
    anchor = next((at for at, shape in enumerate(shapes) if shape in shapes[at + 1 :]), None)
    if anchor is not None:
        later = convolutions[anchor + 1 :]
        yield from ((name, convolutions[anchor][0]) for name, shape in later if shape == shapes[anchor])


def _vit_norm(modules: Modules, stage: Stage) -> Iterator[tuple[str, str]]:
    """Transformers: in every block, the scale of the first LayerNorm is the anchor of the others."""
    for block in stage:
        layers = _weighted_layers(modules, block)
        norms = [f"{name}.weight" for name, layer in layers if isinstance(layer, nn.LayerNorm)]
        yield from ((name, norms[0]) for name in norms[1:])


def _generic(modules: Modules, stage: Stage) -> Iterator[tuple[str, str]]:
    """Any model: the anchor of a weight is the stage's first weight of the same layer type and shape."""
    first: dict[tuple[type[nn.Module], tuple[int, ...]], str] = {}
    for block in stage:
        for name, layer in _weighted_layers(modules, block):
            weight = layer.weight
            assert isinstance(weight, nn.Parameter)  # as _weighted_layers returns only such layers
            key = type(layer), tuple(weight.shape)
            if key in first:
                yield f"{name}.weight", first[key]
            else:
                first[key] = f"{name}.weight"


PAIRINGS: dict[str, Callable[[Modules, Stage], Iterator[tuple[str, str]]]] = {
    "resnet_ref": _resnet_ref,
    "resnet_paper": _resnet_paper,
    "vit_norm": _vit_norm,
    "generic": _generic,
}
