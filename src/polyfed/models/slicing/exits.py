"""A model that answers at several depths: a list of logits, one for each exit, the deepest last (ScaleFL, B4)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import islice

from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.blocks import ConvNormAct, InvertedResidual
from polyfed.models.registry import build
from polyfed.models.resnet import ResidualBlock
from polyfed.models.spec import ModelSpec
from polyfed.models.split import SplitModel
from polyfed.models.vit import VisionTransformer

EXIT_CONVOLUTIONS = 3
BEFORE_TRUNK = ("normalise", "pool_input")
AFTER_TRUNK = ("pool", "dropout", "adapter")


class ClassToken(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


class ExitBackbone(nn.Module):
    """A backbone up to its deepest exit, with a neck for each early exit that turns what is there into features.

    Parts keep the names they have without exits; what lies beyond the deepest exit is not there.
    """

    def __init__(self, backbone: nn.Module, depths: Sequence[int], norm: str) -> None:
        super().__init__()
        parts = dict(backbone.named_children())
        trunk, count = parts["trunk"], len(trunk_blocks(parts["trunk"]))
        early = [depth for depth in depths if depth < count]
        necks = {str(depth): _neck(trunk, trunk_blocks(trunk)[depth - 1], norm) for depth in early}
        self.deepest = depths[-1]
        self.ends_early = self.deepest < count
        kept = BEFORE_TRUNK if self.ends_early else BEFORE_TRUNK + AFTER_TRUNK
        if self.ends_early:
            _shorten(trunk, self.deepest)
        for name, part in parts.items():
            if name == "trunk" or name in kept:
                self.add_module(name, part)
        self.necks = nn.ModuleDict(necks)

    def at_exits(self, x: Tensor) -> list[Tensor]:
        """The features of every exit."""
        return self._run(x, range(1, self.deepest + 1))

    def forward(self, x: Tensor) -> Tensor:
        """The features of the deepest exit; the other necks are not computed."""
        return self._run(x, (self.deepest,))[-1]

    def _run(self, x: Tensor, wanted: Container[int]) -> list[Tensor]:
        trunk = self.get_submodule("trunk")
        x = self._through(BEFORE_TRUNK, x)
        x = trunk.tokens(x) if isinstance(trunk, VisionTransformer) else trunk.get_submodule("stem")(x)
        found: list[Tensor] = []
        for depth, block in enumerate(trunk_blocks(trunk), start=1):
            x = block(x)
            if depth in wanted and str(depth) in self.necks:
                found.append(self.necks[str(depth)](x))
        if not self.ends_early:
            if isinstance(trunk, VisionTransformer):
                x = trunk.norm(x)[:, 0]
            elif "last" in dict(trunk.named_children()):
                x = trunk.get_submodule("last")(x)
            found.append(self._through(AFTER_TRUNK, x))
        return found

    def _through(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        parts = dict(self.named_children())
        for name in names:
            if name in parts:
                x = parts[name](x)
        return x


class ExitHeads(nn.ModuleDict):
    """One classifier for each exit, by its depth; on features alone, that of the deepest."""

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = list(self.values())[-1](z)
        return logits


class EarlyExits(SplitModel):
    """Answers like its deepest exit; `logits` gives what all exits say."""

    backbone: ExitBackbone
    head: ExitHeads

    def __init__(
        self, backbone: ExitBackbone, head: ExitHeads, *, depths: tuple[int, ...], feature_dim: int, classes: int
    ) -> None:
        super().__init__(backbone, head, feature_dim=feature_dim, classes=classes)
        self.depths = depths

    def logits(self, x: Tensor) -> list[Tensor]:
        return [head(z) for head, z in zip(self.head.values(), self.backbone.at_exits(x), strict=True)]


def build_with_exits(
    spec: ModelSpec | str, depths: Sequence[int], *, shape: tuple[int, ...], classes: int
) -> EarlyExits:
    """The model of `spec` with an exit after each of these numbers of blocks, counted through all stages.

    It ends with the last of them; where that is the number of blocks, the last exit is the model's own head. So the
    sub-model of a ScaleFL level is built with the first depths of the server model, at its own width.
    """
    spec = ModelSpec.parse(spec) if isinstance(spec, str) else spec
    model = build(replace(spec, exits=None), shape=shape, classes=classes)
    trunk = dict(model.backbone.named_children()).get("trunk", model.backbone)
    blocks = trunk_blocks(trunk)
    if not depths or any(b <= a for a, b in zip((0, *depths), depths, strict=False)) or depths[-1] > len(blocks):
        raise InputError(
            f"Model '{spec.name}': exits are asked for after blocks {list(depths)}, allowed are ascending numbers "
            f"from 1 to {len(blocks)}."
        )
    widths = [_width(trunk, blocks[depth - 1]) for depth in depths]
    heads = ExitHeads()
    for depth, width in zip(depths, widths, strict=True):
        heads[str(depth)] = model.head if depth == len(blocks) else nn.Linear(width, classes)
    feature_dim = model.feature_dim if depths[-1] == len(blocks) else widths[-1]
    backbone = ExitBackbone(model.backbone, depths, spec.norm)
    return EarlyExits(backbone, heads, depths=tuple(depths), feature_dim=feature_dim, classes=classes)


def trunk_blocks(trunk: nn.Module) -> list[nn.Module]:
    """All blocks in the order of the forward pass, through all stages."""
    if isinstance(trunk, VisionTransformer):
        return list(trunk.blocks)
    stages = getattr(trunk, "stages", None)
    blocks = [block for stage in stages for block in stage.children()] if isinstance(stages, nn.ModuleList) else []
    if not blocks or not all(isinstance(block, ResidualBlock | InvertedResidual) for block in blocks):
        raise InputError(
            f"A model with the trunk {type(trunk).__name__} has no blocks to exit after; allowed are the ResNets, "
            "the MobileNets, EfficientNet and the transformers."
        )
    return blocks


def _width(trunk: nn.Module, block: nn.Module) -> int:
    """How many channels come out of a block."""
    if isinstance(trunk, VisionTransformer):
        return trunk.channels
    layers = block.get_submodule("layers").children()
    return [part for part in layers if isinstance(part, ConvNormAct)][-1].conv.out_channels


def _neck(trunk: nn.Module, block: nn.Module, norm: str) -> nn.Sequential:
    """Three 3x3 convolutions and pooling; for a transformer, the norm and the class token."""
    width = _width(trunk, block)
    if isinstance(trunk, VisionTransformer):
        return nn.Sequential(nn.LayerNorm(width, eps=1e-6), ClassToken())
    convolutions = (ConvNormAct(width, width, 3, norm=norm) for _ in range(EXIT_CONVOLUTIONS))
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _shorten(trunk: nn.Module, depth: int) -> None:
    """Takes out what comes after so many blocks; names of the rest stay."""
    if isinstance(trunk, VisionTransformer):
        trunk.blocks = _first(trunk.blocks, depth)
        del trunk.norm
        return
    kept: list[nn.Sequential] = []
    for stage in trunk.get_submodule("stages").children():
        if depth > 0:
            kept.append(_first(stage, depth))
            depth -= len(kept[-1])
    trunk.stages = nn.ModuleList(kept)
    if "last" in dict(trunk.named_children()):
        del trunk.last


def _first(blocks: nn.Module, count: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(islice(blocks.named_children(), count)))
