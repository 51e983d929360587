"""Build custom models: call the factory, find or check the head, and adapt the module to its spec."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from polyfed.errors import InputError
from polyfed.models.custom_modules import from_module
from polyfed.models.head_search import find_head
from polyfed.models.parts import feature_width, flat_adapter, make_head
from polyfed.models.spec import ModelSpec, Shape
from polyfed.models.split import SplitModel

TRIED_BYTES = 256 << 20  # a model on the meta device with at most this many is built with real weights to check it


def build_custom(
    spec: ModelSpec, factory: Callable[..., nn.Module], head: str | None, shape: Shape, classes: int
) -> SplitModel:
    """Build a registered model: call its factory, split the module at its head, and adapt it to the spec."""
    arguments = {
        "shape": shape,
        "classes": classes,
        "width": spec.width,
        "norm": spec.norm,
        "vocabulary": spec.vocabulary,
    }
    parameters = inspect.signature(factory).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    passed = {k: v for k, v in arguments.items() if takes_all or k in accepted}
    if spec.width != 1 and "width" not in passed:
        raise InputError(f"Model '{spec.name}': width is {spec.width}, but its factory has no parameter 'width'.")
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and parameter.name not in passed:
            raise InputError(
                f"Model '{spec.name}': its factory needs '{parameter.name}'; polyfed passes only "
                f"{', '.join(arguments)}. Give it a default, or pass an instance of the model."
            )
    module = factory(**passed)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"Model '{spec.name}': its factory returned a {type(module).__name__}; expected a torch.nn.Module."
        )
    if head is not None or not isinstance(module, SplitModel):
        meta = [p for p in module.parameters() if p.is_meta]
        tried = head is None or (bool(meta) and sum(p.nbytes for p in meta) <= TRIED_BYTES)
        if tried:
            head = _checked_head(factory, tuple(passed.items()), head, shape, classes, spec.vocabulary)
        # torch imports its compiler to run a module on the meta device, which takes about two seconds
        check = not (meta and tried)
        module = from_module(module, str(head), shape=shape, classes=classes, vocabulary=spec.vocabulary, check=check)
    return _adapt(module, spec, classes)


@lru_cache(maxsize=256)
def _checked_head(
    factory: Callable[..., nn.Module],
    passed: tuple[tuple[str, object], ...],
    head: str | None,
    shape: Shape,
    classes: int,
    vocabulary: int | None,
) -> str:
    """Check the head of the modules of a factory, or find it. Another module is built for it, with real weights."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        module = factory(**dict(passed))
        if head is None:
            return find_head(module, shape=shape, classes=classes, vocabulary=vocabulary)
        from_module(module, head, shape=shape, classes=classes, vocabulary=vocabulary)
        return head


def _adapt(model: SplitModel, spec: ModelSpec, classes: int) -> SplitModel:
    """Return the custom model with the feature width and head that the spec asks for."""
    features = feature_width(spec, model.feature_dim)
    adapter = flat_adapter(spec, model.feature_dim)
    if adapter is None and spec.head is None:
        return model
    backbone = model.backbone if adapter is None else nn.Sequential(model.backbone, adapter)
    return SplitModel(backbone, make_head(spec.head, features, classes), feature_dim=features, classes=classes)
