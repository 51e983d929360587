"""Module instances as data, so that other processes rebuild them without pickle and without their constructor.

`capture` turns an instance into a factory: its classes and functions, a JSON text with the plain attributes of all
its parts, and its tensors. `restore` builds the same module again, with the same weights. Other processes read the
tensors from a safetensors file (`load_weights`).
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.errors import InputError

WEIGHTS_FILE = "initial_weights.safetensors"  # next to the code that registers the models
_weights: dict[str, tuple[Tensor, ...]] = {}  # initial tensors of captured modules, by digest

_PLAIN = (type(None), bool, int, float, str)
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", torch.Size: "size", set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered"}


def capture(module: nn.Module, title: str) -> Callable[[], nn.Module]:
    """Return a factory of copies of a module, with its present weights. Raise `InputError` if it has other parts.

    `title` names the model in messages.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(f"{title} is a TorchScript module, which cannot be split; pass the module it was made from")
    encoder = _Encoder(title)
    encoder.module(module)
    structure = json.dumps({"modules": encoder.modules, "tensors": encoder.tensor_facts})
    digest = hashlib.sha256(structure.encode())
    tensors = tuple(tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for tensor in encoder.tensors)
    for tensor in tensors:
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    key = digest.hexdigest()
    _weights[key] = tensors
    return partial(restore, digest=key, structure=structure, objects=tuple(encoder.objects))


def restore(*, digest: str, structure: str, objects: tuple[Any, ...]) -> nn.Module:
    """Build the module that `capture` has described."""
    if digest not in _weights:
        raise InputError(
            "the weights of a model that was passed to polyfed.run are missing; pass the model again: "
            "polyfed.resume(folder, models=[...])"
        )
    facts = json.loads(structure)
    tensors = [_tensor(tensor, fact) for tensor, fact in zip(_weights[digest], facts["tensors"], strict=True)]
    modules = [objects[entry["class"]].__new__(objects[entry["class"]]) for entry in facts["modules"]]
    decoder = _Decoder(objects, modules, tensors)
    # parts first: some classes look into their parameters when their state is set
    for module, entry in reversed(list(zip(modules, facts["modules"], strict=True))):
        module.__setstate__(decoder.value(entry["state"]))
    root: nn.Module = modules[0]
    return root


def weights_of(factory: Any) -> dict[str, Tensor]:
    """Return the tensors of a captured module under the names of the weights file; none for other factories."""
    if not isinstance(factory, partial) or factory.func is not restore:
        return {}
    digest = str(factory.keywords["digest"])
    return {f"{digest}/{position}": tensor for position, tensor in enumerate(_weights[digest])}


def load_weights(path: Path) -> None:
    """Read the tensors of captured modules that another process has written, if the file exists."""
    from safetensors.torch import load

    if not path.exists() or not path.stat().st_size:
        return
    found: dict[str, dict[int, Tensor]] = {}
    for name, tensor in load(path.read_bytes()).items():
        digest, _, position = name.partition("/")
        found.setdefault(digest, {})[int(position)] = tensor
    for digest, tensors in found.items():
        _weights[digest] = tuple(tensors[position] for position in range(len(tensors)))


def _tensor(source: Tensor, fact: Mapping[str, Any]) -> Tensor:
    """Return a copy of a tensor on the device of the context, which may be the meta device."""
    copy = torch.empty(source.shape, dtype=source.dtype)
    if not copy.is_meta:
        copy.copy_(source)
    if fact["parameter"]:
        return nn.Parameter(copy, requires_grad=fact["gradient"])
    return copy.requires_grad_(fact["gradient"])


class _Encoder:
    """Converts a module and all its parts to JSON values and tables of objects and tensors."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.modules: list[dict[str, Any]] = []
        self.objects: list[Any] = []
        self.tensors: list[Tensor] = []
        self.tensor_facts: list[dict[str, bool]] = []
        self._module_numbers: dict[int, int] = {}

    def module(self, module: nn.Module) -> int:
        """Add a module and its parts. Return its number."""
        if id(module) not in self._module_numbers:
            self._module_numbers[id(module)] = len(self.modules)
            entry: dict[str, Any] = {"class": self._object(type(module))}
            self.modules.append(entry)
            state: Any = module.__getstate__()  # type: ignore[no-untyped-call]
            entry["state"] = self._value(dict(state), type(module).__name__)
        return self._module_numbers[id(module)]

    def _value(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in _SEQUENCES:
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return {_SEQUENCES[kind]: [self._value(item, where) for item in items]}
        if kind in _MAPPINGS:
            pairs = [[self._value(k, where), self._value(v, f"{where}.{k}")] for k, v in value.items()]
            return {_MAPPINGS[kind]: pairs}
        if isinstance(value, nn.Module):
            return {"module": self.module(value)}
        if isinstance(value, Tensor) and kind in (Tensor, nn.Parameter):
            return {"tensor": self._tensor(value)}
        if isinstance(value, FunctionType | BuiltinFunctionType | type):
            return {"object": self._object(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": "cpu"}  # clients train on the CPU
        if isinstance(value, np.generic):
            return self._value(value.item(), where)
        attribute = where.replace("._parameters", "").replace("._buffers", "")
        raise InputError(
            f"{self.title} cannot be copied: its attribute {attribute} is a {kind.__name__}; keep numbers, texts, "
            "functions, tensors and modules in attributes, or pass a function that makes the model instead"
        )

    def _object(self, value: Any) -> int:
        for number, known in enumerate(self.objects):
            if known is value:
                return number
        self.objects.append(value)
        return len(self.objects) - 1

    def _tensor(self, value: Tensor) -> int:
        for number, known in enumerate(self.tensors):
            if known is value:
                return number
        self.tensors.append(value)
        self.tensor_facts.append({"parameter": isinstance(value, nn.Parameter), "gradient": value.requires_grad})
        return len(self.tensors) - 1


class _Decoder:
    """Converts JSON values of `_Encoder` back."""

    def __init__(self, objects: tuple[Any, ...], modules: list[nn.Module], tensors: list[Tensor]) -> None:
        self._tables = {"object": objects, "module": modules, "tensor": tensors}

    def value(self, encoded: Any) -> Any:
        if not isinstance(encoded, dict):
            return encoded
        ((kind, content),) = encoded.items()
        if kind in self._tables:
            return self._tables[kind][content]
        if kind == "dtype":
            return getattr(torch, content)
        if kind == "device":
            return torch.device(content)
        for known, name in _SEQUENCES.items():
            if name == kind:
                return known(self._values(content))
        mapping = {"dict": dict, "ordered": OrderedDict}[kind]
        return mapping((self.value(key), self.value(item)) for key, item in content)

    def _values(self, items: Iterable[Any]) -> list[Any]:
        return [self.value(item) for item in items]
