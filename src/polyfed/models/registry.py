"""The one list of models, polyfed's and the user's: building, describing and adding them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from polyfed.errors import InputError, nearest
from polyfed.models.catalogue import ARCHITECTURES
from polyfed.models.custom_modules import from_module
from polyfed.models.groups import ModelGroup, group, group_names, model_group
from polyfed.models.parts import feature_width, flat_adapter, make_backbone, make_head
from polyfed.models.spec import ModelSpec
from polyfed.models.split import SplitModel

__all__ = [
    "ModelGroup",
    "ModelInfo",
    "ModelSpec",
    "build",
    "describe",
    "from_module",
    "group",
    "group_names",
    "model_group",
    "names",
    "register",
]


@dataclass(frozen=True)
class ModelInfo:
    """What a list of models shows: sizes for ten classes and the input named here, with the model's own head."""

    name: str
    params: int
    extractor_params: int
    feature_dim: int
    flops: int  # one forward pass of one image, 2 per multiply-accumulate
    input: tuple[int, int, int]


@dataclass(frozen=True)
class _Own:
    factory: Callable[..., nn.Module]
    head: str | None


_registered: dict[str, _Own] = {}


def names() -> list[str]:
    return [*ARCHITECTURES, *_registered]


def register(name: str, factory: Callable[..., nn.Module], *, head: str | None = None) -> None:
    """Adds a model of the user's own.

    The factory is called with those of `shape`, `classes`, `width` and `norm` that it has parameters for. It gives a
    SplitModel, or any module whose last layer, a Linear, is called `head` (dotted for an inner module).
    """
    if name in ARCHITECTURES or "@" in name or ":" in name or not name:
        raise InputError(
            f"A model cannot be registered as '{name}': allowed is a name without '@' and ':' that polyfed does not "
            "use."
        )
    if not callable(factory):
        raise InputError(f"Model '{name}': the factory is a {type(factory).__name__}, a function is needed.")
    _registered[name] = _Own(factory, head)
    _describe_at.cache_clear()


def build(spec: ModelSpec | str, *, shape: tuple[int, int, int], classes: int) -> SplitModel:
    """The model for images of this shape (channels, height, width) and this many classes."""
    spec = ModelSpec.parse(spec) if isinstance(spec, str) else spec
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(
            f"Model '{spec.name}': the image shape is {tuple(shape)}, three sizes of 1 or more are needed "
            "(channels, height, width)."
        )
    if classes < 2:
        raise InputError(f"Model '{spec.name}': there are {classes} classes, 2 or more are needed.")
    if spec.exits is not None:
        from polyfed.models.slicing.exits import build_with_exits  # which builds the model without exits by this

        return build_with_exits(spec, spec.exits, shape=shape, classes=classes)
    if spec.name in _registered:
        return _build_own(spec, _registered[spec.name], shape, classes)
    if spec.name not in ARCHITECTURES:
        raise InputError(f"Model '{spec.name}' is unknown: {nearest(spec.name, names())}.")
    architecture = ARCHITECTURES[spec.name]
    side = min(*shape[1:], spec.pool_input or shape[1])
    if side < architecture.smallest:
        raise InputError(
            f"Model '{spec.name}' takes images of {architecture.smallest}x{architecture.smallest} pixels or more, "
            f"found {shape[1]}x{shape[2]}" + (f" pooled to {spec.pool_input}." if side == spec.pool_input else ".")
        )
    trunk = architecture.trunk(spec, _pooled_shape(spec, shape))
    backbone = make_backbone(trunk, spec, shape, architecture.dropout)
    features = feature_width(spec, trunk.channels)
    return SplitModel(backbone, make_head(spec.head, features, classes), feature_dim=features, classes=classes)


def _pooled_shape(spec: ModelSpec, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """What the trunk sees after `pool_input`."""
    if spec.pool_input is None:
        return shape
    return shape[0], min(shape[1], spec.pool_input), min(shape[2], spec.pool_input)


def _build_own(spec: ModelSpec, own: _Own, shape: tuple[int, int, int], classes: int) -> SplitModel:
    offered = {"shape": shape, "classes": classes, "width": spec.width, "norm": spec.norm}
    parameters = inspect.signature(own.factory).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = {k: v for k, v in offered.items() if takes_all or k in named}
    if spec.width != 1 and "width" not in given:
        raise InputError(f"Model '{spec.name}': width is {spec.width}, but its factory has no parameter 'width'.")
    module = own.factory(**given)
    if own.head is not None:
        module = from_module(module, own.head, shape=shape, classes=classes)
    if not isinstance(module, SplitModel):
        raise InputError(
            f"Model '{spec.name}': its factory gave a {type(module).__name__}; needed is a SplitModel, "
            "or the name of its head given to register(..., head=...)."
        )
    return _adapted(module, spec, classes)


def _adapted(model: SplitModel, spec: ModelSpec, classes: int) -> SplitModel:
    """The user's own model with the feature width or head that was asked for; its own where nothing was."""
    features = feature_width(spec, model.feature_dim)
    adapter = flat_adapter(spec, model.feature_dim)
    if adapter is None and spec.head is None:
        return model
    backbone = model.backbone if adapter is None else nn.Sequential(model.backbone, adapter)
    return SplitModel(backbone, make_head(spec.head, features, classes), feature_dim=features, classes=classes)


def describe(name: ModelSpec | str, shape: tuple[int, int, int] | None = None) -> ModelInfo:
    """Sizes for ten classes at `shape`: 3x32x32, or the smallest input it takes where that is larger."""
    spec = ModelSpec.parse(name) if isinstance(name, str) else name
    if shape is None:
        side = max(32, ARCHITECTURES[spec.name].smallest) if spec.name in ARCHITECTURES else 32
        shape = (3, side, side)
    return _describe_at(spec, shape)


@lru_cache(maxsize=256)
def _describe_at(spec: ModelSpec, shape: tuple[int, int, int]) -> ModelInfo:
    # On the meta device nothing is allocated or computed: ResNet-152 costs no more than its Python objects.
    with torch.device("meta"):
        model = build(spec, shape=shape, classes=10).eval()
        params, extractor_params = _count(model), _count(model.backbone)
        _skip_uncounted(model)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.empty(1, *shape))
    return ModelInfo(
        name=spec.label,
        params=params,
        extractor_params=extractor_params,
        feature_dim=model.feature_dim,
        flops=int(counter.get_total_flops()),
        input=shape,
    )


def _skip_uncounted(model: nn.Module) -> None:
    """Norms and activations have no multiply-accumulates that are counted, but take most of a meta pass."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(
                child, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm | nn.ReLU | nn.ReLU6 | nn.GELU | nn.SiLU
            ):
                setattr(parent, name, nn.Identity())


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
