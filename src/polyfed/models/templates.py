"""Copies of polyfed's own small models, which are faster than their constructors and have the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import TypeVar

import torch
from torch import Tensor, nn

from polyfed.models.catalogue import ARCHITECTURES
from polyfed.models.initial_values import Recording, Slot
from polyfed.models.module_parts import tensors_of
from polyfed.models.registry import build
from polyfed.models.spec import ModelSpec, Shape
from polyfed.models.split import SplitModel

LARGEST = 1 << 20  # parameters. In larger models, random numbers take most of the time
CONTAINERS = (dict, list, set)
Module = TypeVar("Module", bound=nn.Module)


def build_channels_last(spec: ModelSpec, *, shape: Shape, classes: int) -> SplitModel:
    """Build a model whose weights come from torch's default generator, in the layout that convolutions prefer."""
    if spec.name in ARCHITECTURES and spec.exits is None:
        return _template(spec, tuple(shape), classes).make()
    return _build(spec, shape, classes)


def _build(spec: ModelSpec, shape: Shape, classes: int) -> SplitModel:
    model = build(spec, shape=shape, classes=classes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@lru_cache(maxsize=256)
def _template(spec: ModelSpec, shape: Shape, classes: int) -> ModelTemplate:
    return ModelTemplate(lambda: _build(spec, shape, classes))


class ModelTemplate:
    """The structure and the constant values of a model, and a recording of how its random values are computed."""

    def __init__(self, constructor: Callable[[], SplitModel]) -> None:
        self._constructor = constructor
        self._built = 0  # models that the constructor made
        self._original: SplitModel | None = None  # without memory for random values
        self._tensors: list[Tensor] = []  # of the original
        self._random: dict[int, Slot] = {}  # tensors with random values, by their position
        self._recording = Recording()

    @property
    def copies(self) -> bool:
        """Whether further models are copies."""
        return self._original is not None

    def make(self) -> SplitModel:
        """Return a new model. The constructor makes the first two, and the second one is recorded.

        Models that are large, or that copies would not be independent of, are always made by the constructor.
        """
        if self._original is not None:
            values = self._recording.repeat()
            random = {k: values[slot] for k, slot in self._random.items()}
            return copy_of(self._original, self._tensors, random)
        self._built += 1
        if self._built != 2:
            return self._constructor()
        with self._recording:
            model = self._constructor()
        tensors = tensors_of(model.modules())
        self._random = self._recording.finish(tensors)
        if self._recording.complete and sum(t.numel() for t in tensors) <= LARGEST and can_be_copied(model):
            self._original = copy_of(model, tensors, {k: tensors[k].new_empty(0) for k in self._random})
            self._tensors = tensors_of(self._original.modules())
        return model


def copy_of(model: Module, tensors: Sequence[Tensor], values: Mapping[int, Tensor]) -> Module:
    """Copy a model that `can_be_copied`, with `tensors_of` it. `values` replaces some of them, by position."""
    copies: dict[int, Tensor] = {}
    for k, tensor in enumerate(tensors):
        value = values[k] if k in values else tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(value, requires_grad=tensor.requires_grad) if is_parameter else value
    return _copy_module(model, copies, {})


def _copy_module(module: Module, tensors: Mapping[int, Tensor], copies: dict[int, nn.Module]) -> Module:
    copy = object.__new__(type(module))
    copies[id(module)] = copy
    attributes = copy.__dict__
    for name, value in module.__dict__.items():
        attributes[name] = value.copy() if isinstance(value, CONTAINERS) else value
    for owned in (copy._parameters, copy._buffers):
        for name, tensor in owned.items():
            owned[name] = None if tensor is None else tensors[id(tensor)]  # type: ignore[assignment]
    for name, child in module._modules.items():
        if child is not None:
            copy._modules[name] = copies.get(id(child)) or _copy_module(child, tensors, copies)
    return copy


def can_be_copied(model: nn.Module) -> bool:
    """Return whether `copy_of` makes an independent copy: no other attribute of a module refers to a part of it."""
    return all(
        _is_plain(value)
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules")
    )


def _is_plain(value: object) -> bool:
    """Return whether a value, or everything in a container, is a constant."""
    if isinstance(value, dict):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, list | set | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    return value is None or isinstance(value, bool | int | float | str | type | torch.dtype)
