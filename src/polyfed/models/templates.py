"""Copies of polyfed's own small models, which are faster than their constructors and have the same weights."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
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
BUILT_FIRST = 5  # models: a recording and its check take as long as a few of them
CONTAINERS = (dict, list, set)
PARTS = ("_parameters", "_buffers", "_modules")  # attributes of a module that are copied with their content
Module = TypeVar("Module", bound=nn.Module)


def build_channels_last(spec: ModelSpec, *, shape: Shape, classes: int) -> SplitModel:
    """Build a model whose weights come from torch's default generator, in the layout that convolutions prefer."""
    usual = torch.empty(0)  # templates are for the usual device, type and mode of new tensors
    is_usual = usual.is_cpu and usual.dtype == torch.float32 and not usual.is_inference()
    if is_usual and spec.name in ARCHITECTURES and spec.exits is None:
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
    """Makes equal models of which only the random values differ: the first ones by a constructor, then copies.

    Models that are large, that a recording does not repeat, or that have parts in common with their copies, are
    always made by the constructor.
    """

    def __init__(self, constructor: Callable[[], SplitModel]) -> None:
        self._constructor = constructor
        self._built = 0  # models that the constructor made
        self._original: _Original | None = None
        self._lock = threading.Lock()

    @property
    def copies(self) -> bool:
        """Whether further models are copies."""
        return self._original is not None

    def make(self) -> SplitModel:
        """Return a new model."""
        with self._lock:
            if self._original is not None:
                return self._original.copy()
            model = self._constructor()
            self._built += 1
            if self._built == BUILT_FIRST and _size(model) <= LARGEST:
                self._original = _original_of(self._constructor)
            return model


class _Original:
    """A model that is copied, and a recording of how its random values are computed."""

    def __init__(self, model: SplitModel, slots: Mapping[int, Slot], recording: Recording) -> None:
        self._slots, self._recording = slots, recording  # slots of tensors with random values, by position
        tensors = tensors_of(model.modules())
        # copies have values of their own: memory for the original's is not needed
        self._model = copy_of(model, tensors, {k: tensors[k].new_empty(0) for k in slots})
        self._tensors = tensors_of(self._model.modules())

    def copy(self) -> SplitModel:
        values = self._recording.repeat()
        return copy_of(self._model, self._tensors, {k: values[slot] for k, slot in self._slots.items()})


def _original_of(constructor: Callable[[], SplitModel]) -> _Original | None:
    """Return an original of which copies are right, or None. Torch's default generator keeps its state."""
    generator = torch.default_generator
    before = generator.get_state()
    try:
        with Recording() as recording:
            model = constructor()
        slots = recording.finish(tensors_of(model.modules()))
        if not can_be_copied(model):
            return None
        start = generator.get_state()  # other random numbers than those of the recording
        other = constructor()
        end = generator.get_state()
        generator.set_state(start)
        tensors = tensors_of(other.modules())
        repeats = recording.repeats(slots.values(), [tensors[k] for k in slots])
        constants = zip(tensors_of(model.modules()), tensors, strict=True)
        equal = all(torch.equal(one, two) for k, (one, two) in enumerate(constants) if k not in slots)
        right = repeats and equal and torch.equal(end, generator.get_state())
        return _Original(model, slots, recording) if right else None
    finally:
        generator.set_state(before)


def _size(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in tensors_of(model.modules()))


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
            known = copies.get(id(child))
            copy._modules[name] = _copy_module(child, tensors, copies) if known is None else known
    return copy


def can_be_copied(model: nn.Module) -> bool:
    """Return whether `copy_of` makes an independent copy: attributes of modules and tensors are constants."""
    attributes = (item for module in model.modules() for item in vars(module).items())
    contents = (_content(value) for name, value in attributes if name not in PARTS)
    constant = all(map(_is_constant, itertools.chain.from_iterable(contents)))
    return constant and not any(vars(tensor) for tensor in tensors_of(model.modules()))


def _content(value: object) -> Iterable[object]:
    """Return what a container holds, or the value itself."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list | set) else [value]


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    if isinstance(value, FunctionType):
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__)
    return value is None or isinstance(value, bool | int | float | str | type | torch.dtype)
