"""A simulated device with real values: `sim:0` and `sim:1` compute on the CPU, but behave like GPUs.

An operation on tensors of different devices raises an error, as on CUDA. Transfers and synchronisations are counted.
A memory limit makes the device raise `torch.OutOfMemoryError`. Import this module to register the device kind `sim`;
workers import it as well, because the registered kind names this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from polyfed import devices

DEVICES = 2
CPU = torch.device("cpu")
aten = torch.ops.aten
# operations that wait for the device on CUDA: their result, or the size of their result, is needed on the host
SYNCHRONISING = {
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "_unique2", "unique_consecutive", "unique_dim",
    "equal", "is_nonzero", "linalg_eigh", "_linalg_eigh", "_linalg_svd", "linalg_qr", "repeat_interleave",
}  # fmt: skip
COPIES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"}
LINEAR = {"mul", "mm", "bmm", "div", "neg", "t", "transpose", "view", "expand", "_unsafe_view", "convolution", "sum"}
STEPS = {"_fused_sgd_", "_fused_adam_"}


@dataclass
class Counts:
    """What happened on the simulated devices."""

    to_device: int = 0
    to_host: int = 0
    synchronisations: int = 0
    steps: int = 0  # optimiser steps
    used: int = 0  # bytes in use, if a limit is set
    peak: int = 0  # outside of backward passes
    limit: int | None = None

    @property
    def transfers(self) -> int:
        return self.to_device + self.to_host

    def reset(self) -> None:
        self.to_device = self.to_host = self.synchronisations = self.steps = self.peak = 0


COUNTS = Counts()


class SimTensor(torch.Tensor):
    """A CPU tensor that is labelled with a simulated device."""

    held: Tensor
    is_zero: bool
    claim: Claim

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> SimTensor:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=device, requires_grad=False,
        )  # fmt: skip
        wrapper.held = inner
        return wrapper

    def tolist(self) -> Any:
        COUNTS.synchronisations += 1
        return self.held.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SimTensor({self.held}, device={self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run one operation on the inner tensors. Count it if it copies or synchronises."""
    name = func.overloadpacket.__name__
    places: set[torch.device] = set()
    inner_args = _unwrap(args, places)
    inner_kwargs = _unwrap(kwargs, places) if kwargs else {}
    here = next((place for place in places if place.type == "sim"), None)
    target = kwargs.get("device")
    if name in COPIES:
        result_device = _count_copy(name, args, kwargs, target)
    else:
        if len(places) > 1:
            raise RuntimeError(f"{name}: tensors on {sorted(map(str, places))}")
        result_device = torch.device(target) if target is not None else here or CPU
        if here is not None and (name in SYNCHRONISING or _indexes_by_mask(name, args)):
            COUNTS.synchronisations += 1
        if name in STEPS:
            COUNTS.steps += 1
    if "device" in inner_kwargs:
        inner_kwargs["device"] = CPU
    inner_kwargs.pop("pin_memory", None)
    # Forward-mode differentiation uses zero tensors without memory. Layers above this one leave them out of sums.
    if name == "_efficientzerotensor":
        zero = _wrap(aten.zeros.default(*inner_args, **inner_kwargs), torch.device(target))
        zero.is_zero = True
        return zero
    if name == "add" and any(getattr(term, "is_zero", False) for term in args[:2]):
        first, second = args[:2]  # adding nothing preserves the sign of zeros
        return _wrap((first if getattr(second, "is_zero", False) else second).held.clone(), result_device)
    output = func(*inner_args, **inner_kwargs)
    if output is None:
        return None
    if name.endswith("_") and not name.endswith("__") and isinstance(output, Tensor):
        if args[0].shape != output.shape:  # an operation on the shape, such as squeeze_
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        return args[0]
    if result_device.type != "sim":
        return output
    if result_device.index is None:
        result_device = torch.device("sim", 0)
    result = _wrap(output, result_device)
    if isinstance(result, SimTensor) and name in LINEAR:
        result.is_zero = any(getattr(factor, "is_zero", False) for factor in args)
    return result


def _count_copy(name: str, args: Any, kwargs: Any, target: Any) -> torch.device:
    source = args[1] if name == "copy_" else args[0]
    to = args[0].device if name == "copy_" else torch.device(target) if target is not None else source.device
    if source.device != to:
        if to.type == "cpu":
            COUNTS.to_host += 1
            COUNTS.synchronisations += 1
        else:
            COUNTS.to_device += 1
            asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True)
            COUNTS.synchronisations += 0 if asynchronous else 1
    return to


def _indexes_by_mask(name: str, args: Any) -> bool:
    if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return False
    return any(isinstance(at, Tensor) and at.dtype in (torch.bool, torch.uint8) for at in args[1])


def _unwrap(value: Any, places: set[torch.device]) -> Any:
    """Return a value with the inner tensors, and add the devices of its tensors to `places`."""
    if isinstance(value, SimTensor):
        places.add(value.device)
        return value.held
    if isinstance(value, Tensor):
        if value.ndim:  # as on CUDA, a single number of the CPU may take part in any operation
            places.add(value.device)
        return value
    if isinstance(value, list | tuple):
        return type(value)([_unwrap(item, places) for item in value])
    if isinstance(value, dict):
        return {key: _unwrap(item, places) for key, item in value.items()}
    return value


def _wrap(value: Any, device: torch.device) -> Any:
    if isinstance(value, SimTensor):
        return value
    if isinstance(value, Tensor):
        wrapper = SimTensor(value, device)
        if COUNTS.limit is not None and value._base is None:  # views use the memory of another tensor
            wrapper.claim = Claim(value.untyped_storage().nbytes())
        return wrapper
    return type(value)([_wrap(item, device) for item in value]) if isinstance(value, list | tuple) else value


class Claim:
    """Memory that a tensor uses, until the tensor is deleted."""

    def __init__(self, size: int) -> None:
        backward = torch._C._current_graph_task_id() != -1  # an error of Python cannot pass torch's backward pass
        if COUNTS.used + size > (COUNTS.limit or 0) and not backward:
            raise torch.OutOfMemoryError(f"the simulated device has {COUNTS.limit} bytes; {COUNTS.used} are in use")
        self.size = size
        COUNTS.used += size
        COUNTS.peak = COUNTS.peak if backward else max(COUNTS.peak, COUNTS.used)

    def __del__(self) -> None:
        COUNTS.used -= getattr(self, "size", 0)


class SimMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives factory functions with `device="sim"` and copies to it their values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps every operation in a function of its compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if types or (device is not None and torch.device(device).type == "sim"):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


class SimulatedKind(devices.DeviceKind):
    """Two simulated devices."""

    name = "sim"
    source = __file__

    def count(self) -> int:
        return DEVICES

    def start(self, index: int) -> torch.device:
        if not _active:
            torch.autograd.set_multithreading_enabled(False)
            mode: Any = SimMode()  # type: ignore[no-untyped-call]
            _active.append(mode.__enter__())  # in a worker: until it ends
        return torch.device("sim", index)

    def free_memory(self, index: int) -> int | None:
        return 1 << 30


_active: list[Any] = []
_setup_privateuseone_for_python_backend("sim")
torch.sim.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
devices.register(SimulatedKind())


@contextmanager
def simulated() -> Iterator[Counts]:
    """Make the simulated devices usable in this thread, and yield their counts, which start at zero."""
    COUNTS.reset()
    # torch would start a thread for the backward passes of each device
    with torch.autograd.set_multithreading_enabled(False), SimMode() as mode:  # type: ignore[no-untyped-call]
        _active.append(mode)
        try:
            yield COUNTS
        finally:
            _active.remove(mode)
