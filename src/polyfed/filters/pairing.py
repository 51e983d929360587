"""Which layers of a server model receive the update of which shallower layer (InCo 2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NoReturn

from torch import nn

from polyfed.errors import InputError
from polyfed.models.resnet import ResidualBlock
from polyfed.models.slicing import block_names
from polyfed.models.split import SplitModel
from polyfed.models.vit import Block

Pairing = Literal["auto", "resnet_ref", "resnet_paper", "vit_norm", "generic"]
Pairs = tuple[tuple[str, str], ...]  # (target, anchor), by tensor name


def pairs(model: SplitModel, pairing: Pairing = "auto") -> Pairs:
    """Targets with their anchors, in the order of the forward pass. Equal shapes, and an anchor is never a target.

    None for a model that is too shallow, or of another kind than the pairing is for.
    """
    stages = block_names(model)
    modules = dict(model.named_modules())
    if pairing == "auto":
        kinds = {type(modules[block]) for stage in stages for block in stage}
        pairing = "resnet_ref" if kinds == {ResidualBlock} else "vit_norm" if kinds == {Block} else "generic"
    find = {"resnet_ref": _reference, "resnet_paper": _paper, "vit_norm": _norm_pairs, "generic": _generic}[pairing]
    return tuple(pair for stage in stages for pair in find(modules, stage))


def refuse(pairing: Pairing, members: Sequence[str]) -> NoReturn:
    """Say that no model has two layers to mix."""
    raise InputError(
        f"server_filter.pairing '{pairing}' finds no two layers of one stage with equal shapes in "
        f"{', '.join(members)}; use a deeper server model, or pairing: generic"
    )


def _inside(modules: dict[str, nn.Module], block: str) -> list[tuple[str, nn.Module]]:
    """The layers of a block with a weight, by their names in the model."""
    inner = [(name, part) for name, part in modules.items() if name == block or name.startswith(block + ".")]
    return [(name, part) for name, part in inner if isinstance(getattr(part, "weight", None), nn.Parameter)]


def _convolutions(modules: dict[str, nn.Module], block: str) -> list[tuple[str, tuple[int, ...]]]:
    """The convolutions on a block's main path, with the shapes of their weights; shortcuts are not among them."""
    return [
        (f"{name}.weight", tuple(part.weight.shape))
        for name, part in _inside(modules, block)
        if isinstance(part, nn.Conv2d) and "shortcut" not in name.removeprefix(block)
    ]


def _reference(modules: dict[str, nn.Module], stage: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The released code: anchored at the last convolution of the first block, all convolutions of later blocks."""
    first = _convolutions(modules, stage[0])
    if not first:
        return
    anchor, shape = first[-1]
    for block in stage[1:]:
        yield from ((name, anchor) for name, found in _convolutions(modules, block) if found == shape)


def _paper(modules: dict[str, nn.Module], stage: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The text: a stage's first convolution that has the shape of others, and all later ones of that shape."""
    every = [pair for block in stage for pair in _convolutions(modules, block)]
    shapes = [shape for _, shape in every]
    anchor = next((at for at, shape in enumerate(shapes) if shape in shapes[at + 1 :]), None)
    if anchor is not None:
        yield from ((name, every[anchor][0]) for name, shape in every[anchor + 1 :] if shape == shapes[anchor])


def _norms(modules: dict[str, nn.Module], block: str) -> list[str]:
    return [f"{name}.weight" for name, part in _inside(modules, block) if isinstance(part, nn.LayerNorm)]


def _norm_pairs(modules: dict[str, nn.Module], stage: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A transformer: in every block, the second norm's scale receives the first one's."""
    for block in stage:
        norms = _norms(modules, block)
        yield from ((name, norms[0]) for name in norms[1:])


def _generic(modules: dict[str, nn.Module], stage: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every weight of a stage whose kind and shape came before in the stage, anchored at the first of them."""
    first: dict[tuple[type[nn.Module], tuple[int, ...]], str] = {}
    for block in stage:
        for name, part in _inside(modules, block):
            weight = part.weight
            assert isinstance(weight, nn.Parameter)  # that is what _inside looks for
            key = type(part), tuple(weight.shape)
            if key in first:
                yield f"{name}.weight", first[key]
            else:
                first[key] = f"{name}.weight"
