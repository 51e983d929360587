"""Models with early exits (ScaleFL): one classifier after each of several blocks, the deepest last."""

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
BEFORE_TRUNK = ("normalise", "upscale_input", "pool_input")
AFTER_TRUNK = ("pool", "dropout", "adapter")


class ClassToken(nn.Module):
    """The class token of a transformer's output."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


class ExitBackbone(nn.Module):
    """A backbone up to its deepest exit, with a neck per early exit that turns the block's output into features.

    Modules have the same names as in the model without exits. Modules after the deepest exit are removed.
    """

    def __init__(self, backbone: nn.Module, depths: Sequence[int], norm: str) -> None:
        super().__init__()
        parts = dict(backbone.named_children())
        trunk, count = parts["trunk"], len(trunk_blocks(parts["trunk"]))
        early = [depth for depth in depths if depth < count]
        necks = {str(depth): _neck(trunk, trunk_blocks(trunk)[depth - 1], norm) for depth in early}
        self.deepest = depths[-1]
        self.ends_early = self.deepest < count
        around_trunk = BEFORE_TRUNK if self.ends_early else BEFORE_TRUNK + AFTER_TRUNK
        if self.ends_early:
            _truncate(trunk, self.deepest)
        for name, part in parts.items():
            if name == "trunk" or name in around_trunk:
                self.add_module(name, part)
        self.necks = nn.ModuleDict(necks)

    def at_exits(self, x: Tensor) -> list[Tensor]:
        """Return the features of every exit."""
        return self._features_at(x, range(1, self.deepest + 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the deepest exit. The other necks are not computed."""
        return self._features_at(x, (self.deepest,))[-1]

    def _features_at(self, x: Tensor, wanted: Container[int]) -> list[Tensor]:
        """Return the features of the wanted depths, and those after the last block if the model has all blocks."""
        trunk = self.get_submodule("trunk")
        x = self._apply_parts(BEFORE_TRUNK, x)
        x = trunk.tokens(x) if isinstance(trunk, VisionTransformer) else trunk.get_submodule("stem")(x)
        features: list[Tensor] = []
        for depth, block in enumerate(trunk_blocks(trunk), start=1):
            x = block(x)
            if depth in wanted and str(depth) in self.necks:
                features.append(self.necks[str(depth)](x))
        if not self.ends_early:
            if isinstance(trunk, VisionTransformer):
                x = trunk.norm(x)[:, 0]
            elif "last" in dict(trunk.named_children()):
                x = trunk.get_submodule("last")(x)
            features.append(self._apply_parts(AFTER_TRUNK, x))
        return features

    def _apply_parts(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        """Apply the named modules that exist, in order."""
        parts = dict(self.named_children())
        for name in names:
            if name in parts:
                x = parts[name](x)
        return x


class ExitHeads(nn.ModuleDict):
    """One classifier per exit, by depth. Calling it applies the classifier of the deepest exit."""

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = list(self.values())[-1](z)
        return logits


class EarlyExits(SplitModel):
    """A model with several exits. `forward` returns the logits of the deepest exit, `logits` those of all exits."""

    backbone: ExitBackbone
    head: ExitHeads

    def __init__(
        self, backbone: ExitBackbone, head: ExitHeads, *, depths: tuple[int, ...], feature_dim: int, classes: int
    ) -> None:
        super().__init__(backbone, head, feature_dim=feature_dim, classes=classes)
        self.depths = depths

    def logits(self, x: Tensor) -> list[Tensor]:
        """Return the logits of every exit, the deepest last."""
        return [head(z) for head, z in zip(self.head.values(), self.backbone.at_exits(x), strict=True)]


def build_with_exits(
    spec: ModelSpec | str, depths: Sequence[int], *, shape: tuple[int, ...], classes: int
) -> EarlyExits:
    """Build the model of `spec` with an exit after each of these numbers of blocks, counted through all stages.

    The model ends with the last exit. If that exit comes after the last block, it is the model's own head. To build
    the sub-model of a ScaleFL level, pass the first depths of the server model and the level's width.
    """
    spec = ModelSpec.parse(spec) if isinstance(spec, str) else spec
    model = build(replace(spec, exits=None), shape=shape, classes=classes)
    trunk = dict(model.backbone.named_children()).get("trunk", model.backbone)
    blocks = trunk_blocks(trunk)
    if not depths or any(b <= a for a, b in zip((0, *depths), depths, strict=False)) or depths[-1] > len(blocks):
        raise InputError(
            f"Model '{spec.name}': exits are asked for after blocks {list(depths)}; expected ascending numbers from "
            f"1 to {len(blocks)}."
        )
    widths = [_output_channels(trunk, blocks[depth - 1]) for depth in depths]
    heads = ExitHeads()
    for depth, width in zip(depths, widths, strict=True):
        heads[str(depth)] = model.head if depth == len(blocks) else nn.Linear(width, classes)
    feature_dim = model.feature_dim if depths[-1] == len(blocks) else widths[-1]
    backbone = ExitBackbone(model.backbone, depths, spec.norm)
    return EarlyExits(backbone, heads, depths=tuple(depths), feature_dim=feature_dim, classes=classes)


def trunk_blocks(trunk: nn.Module) -> list[nn.Module]:
    """Return the blocks of all stages, in the order of the forward pass."""
    if isinstance(trunk, VisionTransformer):
        return list(trunk.blocks)
    stages = getattr(trunk, "stages", None)
    blocks = [block for stage in stages for block in stage.children()] if isinstance(stages, nn.ModuleList) else []
    if not blocks or not all(isinstance(block, ResidualBlock | InvertedResidual) for block in blocks):
        raise InputError(
            f"A model with the trunk {type(trunk).__name__} has no blocks to exit after. Use a ResNet, MobileNet, "
            "EfficientNet or transformer."
        )
    return blocks


def _output_channels(trunk: nn.Module, block: nn.Module) -> int:
    """Return the number of output channels of a block."""
    if isinstance(trunk, VisionTransformer):
        return trunk.channels
    layers = block.get_submodule("layers").children()
    return [part for part in layers if isinstance(part, ConvNormAct)][-1].conv.out_channels


def _neck(trunk: nn.Module, block: nn.Module, norm: str) -> nn.Sequential:
    """Build the neck of an exit: three 3x3 convolutions and pooling, or norm and class token for a transformer."""
    width = _output_channels(trunk, block)
    if isinstance(trunk, VisionTransformer):
        return nn.Sequential(nn.LayerNorm(width, eps=1e-6), ClassToken())
    convolutions = (ConvNormAct(width, width, 3, norm=norm) for _ in range(EXIT_CONVOLUTIONS))
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _truncate(trunk: nn.Module, depth: int) -> None:
    """Remove everything after the first `depth` blocks. The remaining modules keep their names."""
    if isinstance(trunk, VisionTransformer):
        trunk.blocks = _first_blocks(trunk.blocks, depth)
        del trunk.norm
        return
    stages: list[nn.Sequential] = []
    for stage in trunk.get_submodule("stages").children():
        if depth > 0:
            stages.append(_first_blocks(stage, depth))
            depth -= len(stages[-1])
    trunk.stages = nn.ModuleList(stages)
    if "last" in dict(trunk.named_children()):
        del trunk.last


def _first_blocks(blocks: nn.Module, count: int) -> nn.Sequential:
    """Return the first `count` blocks under their names."""
    return nn.Sequential(OrderedDict(islice(blocks.named_children(), count)))
