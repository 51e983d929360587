"""The kinds of devices that models can train on: how many there are, their memory, and how to start using one.

torch is imported by functions only, because configs are checked before torch is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    import torch

AUTO = "auto"
VISIBLE = "CUDA_VISIBLE_DEVICES"


class DeviceKind(ABC):
    """A kind of device, such as `cuda`."""

    name: str
    has_double: bool = True  # whether it computes in double precision
    source: str = ""  # file that registers the kind; worker processes import it

    @abstractmethod
    def count(self) -> int:
        """Return how many devices this machine has. Must not initialise them in this process."""

    @abstractmethod
    def start(self, index: int) -> torch.device:
        """Prepare this process for using one device, and return the device."""

    def free_memory(self, index: int) -> int | None:
        """Return the free memory of a device in bytes, or None if it is not known."""
        return None

    def release_memory(self) -> None:  # noqa: B027  (most kinds have nothing to do)
        """Return unused memory of this process to the device."""

    def environment(self, index: int) -> dict[str, str]:
        """Return environment variables of a worker process that uses only this device."""
        return {}

    def index_in_worker(self, index: int) -> int:
        """Return the number of the device in a worker process that has the variables of `environment`."""
        return index

    def describe(self, index: int) -> str:
        """Return a name of the device for results."""
        return self.name


class Cpu(DeviceKind):
    """The processor of this machine."""

    name = "cpu"

    def count(self) -> int:
        return 1

    def start(self, index: int) -> torch.device:
        import torch

        return torch.device("cpu")


class Cuda(DeviceKind):
    """NVIDIA GPUs, and AMD GPUs with a ROCm build of torch."""

    name = "cuda"

    def count(self) -> int:
        import torch

        return torch.cuda.device_count()  # asks the driver's management library and creates no context

    def start(self, index: int) -> torch.device:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # needed for deterministic matrix products
        import torch

        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False  # the fastest algorithm differs between processes
        torch.cuda.set_device(index)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return torch.device("cuda", index)

    def free_memory(self, index: int) -> int | None:
        import torch

        return torch.cuda.mem_get_info(index)[0]

    def release_memory(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def environment(self, index: int) -> dict[str, str]:
        visible = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
        return {VISIBLE: visible[index] if index < len(visible) else str(index)}

    def index_in_worker(self, index: int) -> int:
        return 0

    def describe(self, index: int) -> str:
        import torch

        return f"cuda ({torch.cuda.get_device_name(index)})"


class Mps(DeviceKind):
    """The GPU of an Apple machine. It has no double precision."""

    name = "mps"
    has_double = False

    def count(self) -> int:
        import torch

        return int(torch.backends.mps.is_available())

    def start(self, index: int) -> torch.device:
        import torch

        return torch.device("mps")

    def release_memory(self) -> None:
        import torch

        torch.mps.empty_cache()


_KINDS: dict[str, DeviceKind] = {kind.name: kind for kind in (Cpu(), Cuda(), Mps())}
_PREFERRED = ("cuda", "mps", "cpu")


def names() -> tuple[str, ...]:
    """Return what `engine.device` may be."""
    return (AUTO, *_KINDS)


def source_of(name: str) -> str:
    """Return the file that registers a kind, or an empty string for the kinds of this module."""
    return _KINDS[name].source if name in _KINDS else ""


def has(name: str) -> bool:
    """Return whether this machine has a device of a kind."""
    return name in _KINDS and _KINDS[name].count() > 0


def register(kind: DeviceKind) -> None:
    """Add a kind of device."""
    _KINDS[kind.name] = kind


def kind_of(name: str) -> DeviceKind:
    """Return a kind by name; `auto` is the first of cuda, mps and cpu that this machine has.

    Raise InputError if the machine has none.
    """
    if name == AUTO:
        return next(_KINDS[kind] for kind in _PREFERRED if _KINDS[kind].count())
    if name not in _KINDS:
        raise InputError(f"there is no device '{name}'; {nearest(name, names())}")
    kind = _KINDS[name]
    if not kind.count():
        raise InputError(f"engine.device is {name}, but this machine has no such device; set engine.device: cpu")
    return kind


@dataclass(frozen=True)
class DeviceChoice:
    """A device of a worker process, as it is sent to the worker."""

    kind: str = "cpu"
    index: int = 0
    workers: int = 1  # worker processes that share the device
    source: str = ""  # file that registers the kind

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a process that uses only this device."""
        return _KINDS[self.kind].environment(self.index)


def choose(name: str, worker: int = 0, workers: int = 1) -> DeviceChoice:
    """Return the device of one of several workers. They take the devices of this machine in turn."""
    kind = kind_of(name)
    count = kind.count()
    return DeviceChoice(kind.name, worker % count, -(-workers // count), kind.source)


def load_source(path: str) -> None:
    """Import the file that registers a kind of device, unless it has been imported."""
    if not path or any(getattr(module, "__file__", None) == path for module in list(sys.modules.values())):
        return
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
