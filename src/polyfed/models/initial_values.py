"""Record how the constructors of a model compute its random weights, and repeat this without the constructors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Slot:
    """A tensor of a recording: the address of its memory, and its elements there."""

    memory: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True)
class _Operation:
    """A call of a function of torch. Tensors among its arguments are slots."""

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Slot


class Recording(TorchFunctionMode):
    """Records random operations, and all operations on their results, while constructors run in this context.

    An operation is random if it changes the state of torch's default generator. Not everything is recorded: tensors
    in lists of arguments, several results, numbers that are read from a tensor. So `repeats` must be asked before a
    recording is used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[_Operation] = []
        self._filled: dict[Slot, None] = {}  # tensors without values, which random operations fill
        self._results: set[Slot] = set()
        self._random: set[int] = set()  # addresses of memory with random values
        self._kept: list[Tensor] = []  # no other tensor may get their memory during the recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options, generator = kwargs or {}, torch.default_generator
        tensors = list(_tensors_in([*args, *options.values()]))
        before, versions = generator.get_state(), [tensor._version for tensor in tensors]
        result = func(*args, **options)
        is_random = not torch.equal(before, generator.get_state())
        if isinstance(result, Tensor) and (is_random or any(map(self._is_random, tensors))):
            changes = is_random or versions != [tensor._version for tensor in tensors]
            self._record(func, args, options, result, changes)
        return result

    def finish(self, tensors: Sequence[Tensor]) -> dict[int, Slot]:
        """End the recording. Return the slots of a model's tensors that have random values, by their position."""
        slots = {k: _slot(tensor) for k, tensor in enumerate(tensors) if self._is_random(tensor)}
        self._kept = []
        return slots

    def repeat(self, fill: float | None = None) -> dict[Slot, Tensor]:
        """Repeat the operations with torch's default generator, and return their results.

        `fill` is written to memory that random operations fill.
        """
        tensors = {slot: torch.empty_strided(slot.size, slot.stride, dtype=slot.dtype) for slot in self._filled}

        def value(argument: Any) -> Any:
            return tensors[argument] if isinstance(argument, Slot) else argument

        with torch.no_grad():
            if fill is not None:
                for tensor in tensors.values():
                    tensor.fill_(fill)
            for operation in self._operations:
                arguments = map(value, operation.arguments)
                options = {name: value(argument) for name, argument in operation.options.items()}
                tensors[operation.result] = operation.function(*arguments, **options)
        return tensors

    def repeats(self, slots: Iterable[Slot], expected: Iterable[Tensor]) -> bool:
        """Return whether a repetition computes these tensors, which constructors made from the same generator."""
        try:
            values = self.repeat(fill=math.nan)
            return all(_identical(values[slot], tensor) for slot, tensor in zip(slots, expected, strict=True))
        except (KeyError, RuntimeError):  # a tensor that was not recorded, or an operation that needs one
            return False

    def _is_random(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._random

    def _record(self, function: Any, args: Any, options: dict[str, Any], result: Tensor, changes: bool) -> None:
        arguments, out = tuple(map(_slot_of, args)), _slot(result)
        named = {name: _slot_of(value) for name, value in options.items()}
        slots = {value for value in (*arguments, *named.values()) if isinstance(value, Slot)}
        if not changes and out in slots:
            return  # an argument itself, for example without its gradient
        self._filled |= dict.fromkeys(slots - self._results)
        self._operations.append(_Operation(function, arguments, named, out))
        self._results.add(out)
        self._random.add(out.memory)
        self._kept.append(result.detach())  # the tensor itself may get other memory


def _slot(tensor: Tensor) -> Slot:
    memory, offset = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())
    return Slot(memory, tuple(tensor.shape), tensor.stride(), offset, tensor.dtype)


def _slot_of(value: object) -> object:
    return _slot(value) if isinstance(value, Tensor) else value


def _tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, and those in lists of arguments."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _identical(tensor: Tensor, other: Tensor) -> bool:
    same_kind = tensor.dtype == other.dtype and tensor.stride() == other.stride()
    return same_kind and torch.equal(tensor, other)
