"""Registry of all models, built-in and custom: build, describe and register them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from polyfed import plugins
from polyfed.errors import InputError, nearest
from polyfed.models.blocks import Trunk
from polyfed.models.catalogue import ARCHITECTURES, Architecture
from polyfed.models.custom_build import build_custom
from polyfed.models.custom_modules import from_module
from polyfed.models.groups import ModelGroup, group, group_names, model_group
from polyfed.models.meta import meta_device
from polyfed.models.parts import feature_width, make_backbone, make_flat_backbone, make_head
from polyfed.models.spec import ModelSpec, Shape
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
    """Size of a model for ten classes and inputs of shape `input`, with the model's own head."""

    name: str
    params: int
    extractor_params: int
    feature_dim: int
    flops: int  # one forward pass of one image, 2 per multiply-accumulate
    input: Shape


@dataclass(frozen=True)
class OwnModel:
    """A registered factory and the name of the head in the module that it returns (None: polyfed looks for it)."""

    factory: Callable[..., nn.Module]
    head: str | None
    module: str = ""  # that registered it


_registered: dict[str, OwnModel] = {}


def registered_models() -> Mapping[str, OwnModel]:
    """Return the models that the user registered in this process, by name."""
    return _registered


def names() -> list[str]:
    """Return the names of all models: polyfed's own, those of installed packages, and registered ones."""
    return list(dict.fromkeys([*ARCHITECTURES, *plugins.entry_points(plugins.MODELS), *_registered]))


def register(name: str, factory: Callable[..., nn.Module], *, head: str | None = None) -> None:
    """Register a custom model.

    The factory receives those of `shape`, `classes`, `width`, `norm` and `vocabulary` that are among its parameters.
    It returns a `SplitModel`, or any module whose last layer is a Linear with one output per class. `head` is the
    (dotted) name of this layer; without it polyfed looks for the layer.

    Examples:
        >>> from torch import nn
        >>> def my_mlp(shape, classes):
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))
        >>> polyfed.models.register("my-mlp", my_mlp)
        >>> "my-mlp" in polyfed.models.names()
        True
    """
    if name in ARCHITECTURES or "@" in name or ":" in name or not name:
        raise InputError(
            f"Cannot register a model as '{name}': the name must not be empty, contain '@' or ':', or be one of "
            "polyfed's models."
        )
    if not callable(factory):
        raise InputError(f"Model '{name}': the factory is a {type(factory).__name__}; expected a function.")
    _registered[name] = OwnModel(factory, head, str(sys._getframe(1).f_globals.get("__name__", "")))
    _describe_at.cache_clear()


def forget(modules: Collection[str]) -> None:
    """Remove the models that modules registered, before the modules are imported again."""
    for name in [name for name, own in _registered.items() if own.module in modules]:
        del _registered[name]
    _describe_at.cache_clear()


def build(spec: ModelSpec | str, *, shape: Shape, classes: int) -> SplitModel:
    """Build the model for samples of this shape and this many classes."""
    spec = ModelSpec.parse(spec) if isinstance(spec, str) else spec
    if not shape or min(shape) < 1:
        raise InputError(
            f"Model '{spec.name}': the shape of a sample is {tuple(shape)}; expected sizes of 1 or more."
        )
    if classes < 2:
        raise InputError(f"Model '{spec.name}': there are {classes} classes; at least 2 are needed.")
    if spec.exits is not None:
        from polyfed.models.slicing.exits import build_with_exits  # imports this module

        return build_with_exits(spec, spec.exits, shape=_image_shape(spec, shape), classes=classes)
    custom = _registered.get(spec.name) or _installed_model(spec.name)
    if custom is not None:
        return build_custom(spec, custom.factory, custom.head, shape, classes)
    if spec.name not in ARCHITECTURES:
        raise InputError(f"unknown model '{spec.name}'; {nearest(spec.name, names())}")
    architecture = ARCHITECTURES[spec.name]
    if architecture.takes == "picture":
        backbone, channels = _image_backbone(spec, architecture, _image_shape(spec, shape))
    else:
        trunk = _flat_trunk(spec, architecture, shape)
        backbone, channels = make_flat_backbone(trunk, spec), trunk.channels
    features = feature_width(spec, channels)
    return SplitModel(backbone, make_head(spec.head, features, classes), feature_dim=features, classes=classes)


@cache
def _installed_model(name: str) -> OwnModel | None:
    """Return the model of an installed package, or None. polyfed's own models cannot be replaced."""
    if name in ARCHITECTURES or name not in plugins.entry_points(plugins.MODELS):
        return None
    factory = plugins.load(plugins.MODELS, name)
    if not callable(factory):
        title = plugins.describe(plugins.MODELS, name)
        raise InputError(f"{title} is a {type(factory).__name__}; expected a function or a class.")
    return OwnModel(factory, None)


def _image_shape(spec: ModelSpec, shape: Shape) -> tuple[int, int, int]:
    """Return the shape if samples are images (channels, height, width); raise InputError otherwise."""
    if len(shape) != 3:
        raise InputError(
            f"Model '{spec.name}' takes images (channels, height, width), but samples have shape {tuple(shape)}; "
            f"use a model of group {_group_for(spec, shape)}."
        )
    return shape[0], shape[1], shape[2]


def _group_for(spec: ModelSpec, shape: Shape) -> str:
    """Return the small group whose models take samples of this kind. Only the specs of text have a vocabulary."""
    if len(shape) == 1:
        return "tabular4" if spec.vocabulary is None else "text4"
    return "series4" if len(shape) == 2 else "tiny4"


def _image_backbone(
    spec: ModelSpec, architecture: Architecture, shape: tuple[int, int, int]
) -> tuple[nn.Module, int]:
    """Build the backbone of an image model; return it and the channels of its trunk."""
    trunk_shape = _trunk_shape(spec, shape)
    side = min(trunk_shape[1:])
    if side < architecture.smallest:
        raise InputError(
            f"Model '{spec.name}' takes images of {architecture.smallest}x{architecture.smallest} pixels or more; "
            f"these have {shape[1]}x{shape[2]}"
            + (f", pooled to {spec.pool_input}." if side == spec.pool_input else ".")
        )
    trunk = architecture.trunk(spec, trunk_shape)
    return make_backbone(trunk, spec, shape, architecture.dropout), trunk.channels


def _flat_trunk(spec: ModelSpec, architecture: Architecture, shape: Shape) -> Trunk:
    """Build a trunk for tables, series or text; raise InputError if the samples have another kind or shape."""
    dimensions = {"table": 1, "series": 2, "text": 1}[architecture.takes]
    if len(shape) != dimensions:
        expected = {"table": "a row of numbers", "series": "(channels, steps)", "text": "a row of tokens"}
        raise InputError(
            f"Model '{spec.name}' takes {expected[architecture.takes]} per sample; these have shape {tuple(shape)}; "
            f"use a model of group {_group_for(spec, shape)}."
        )
    if architecture.takes != "text":
        if spec.vocabulary is not None:
            raise InputError(
                f"Model '{spec.name}' takes numbers, but the samples are tokens; use a model of group text4."
            )
        return architecture.trunk(spec, shape)
    if spec.vocabulary is None:
        raise InputError(
            f"Model '{spec.name}' takes tokens of a text, but the samples are numbers; use a model of group tabular4."
        )
    return architecture.trunk(spec, shape, spec.vocabulary)


def _trunk_shape(spec: ModelSpec, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape that the trunk receives after `upscale_input` and `pool_input`."""
    channels, *sides = shape
    if spec.upscale_input is not None:
        sides = [max(side, spec.upscale_input) for side in sides]
    if spec.pool_input is not None:
        sides = [min(side, spec.pool_input) for side in sides]
    return channels, sides[0], sides[1]


def describe(name: ModelSpec | str, shape: Shape | None = None) -> ModelInfo:
    """Return the model's sizes for ten classes and samples of `shape`, by default a typical small input."""
    spec = ModelSpec.parse(name) if isinstance(name, str) else name
    takes = ARCHITECTURES[spec.name].takes if spec.name in ARCHITECTURES else "picture"
    if shape is None:
        side = max(32, ARCHITECTURES[spec.name].smallest) if spec.name in ARCHITECTURES else 32
        shape = {"table": (30,), "series": (9, 128), "text": (64,)}.get(takes, (3, side, side))
    if takes == "text" and spec.vocabulary is None:
        spec = dataclasses.replace(spec, vocabulary=10_000)
    return _describe_at(spec, shape)


@lru_cache(maxsize=256)
def _describe_at(spec: ModelSpec, shape: Shape) -> ModelInfo:
    """Count the parameters and FLOPs of a model."""
    # On the meta device, tensors need no memory and no computation.
    with meta_device():
        model = build(spec, shape=shape, classes=10).eval()
        params, extractor_params = _count_parameters(model), _count_parameters(model.backbone)
        _remove_uncounted(model)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.empty(2, *shape, dtype=torch.float32 if spec.vocabulary is None else torch.int64))
    return ModelInfo(
        name=spec.label,
        params=params,
        extractor_params=extractor_params,
        feature_dim=model.feature_dim,
        flops=int(counter.get_total_flops()) // 2,
        input=shape,
    )


def _remove_uncounted(model: nn.Module) -> None:
    """Replace norms and activations by identities. They add no counted FLOPs but most of the time of a meta pass."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(
                child, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm | nn.ReLU | nn.ReLU6 | nn.GELU | nn.SiLU
            ):
                setattr(parent, name, nn.Identity())


def _count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
