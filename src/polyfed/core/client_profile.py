"""Client profiles: what the server knows about a client before training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

Layout = tuple[tuple[str, tuple[int, ...], str], ...]  # (name, shape, dtype), in the module's own order


@dataclass(frozen=True)
class Profile:
    """Shapes of a client's model and size of its data. It holds neither data nor weights."""

    name: str
    architecture: str
    model: Layout  # parameters and buffers
    head: Layout
    features: int
    classes: int
    samples: int  # training samples
    spec: str = ""  # from which `build` creates this architecture
    buffers: frozenset[str] = frozenset()  # names of the model's buffers
    position: int = 0  # index among all clients
    input_shape: tuple[int, ...] = (0, 0, 0)  # of one sample; a picture has channels, height and width
    tokens: bool = False  # whether samples are tokens of a text

    @property
    def statistics(self) -> Layout:
        """Running means and variances of normalisation layers."""
        return tuple(entry for entry in self.model if entry[0].endswith(("running_mean", "running_var")))

    @property
    def size(self) -> int:
        """Number of elements of the model's parameters and buffers."""
        return sum(math.prod(shape) for _, shape, _ in self.model)


def layout(module: nn.Module) -> Layout:
    """Return names, shapes and types of a module's state dict."""
    return layout_of(module.state_dict())


def layout_of(weights: Mapping[str, Tensor]) -> Layout:
    return tuple((name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in weights.items())
