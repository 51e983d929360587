"""What a federation knows of a client before training: its model's shape, its feature width, its amounts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

Layout = tuple[tuple[str, tuple[int, ...], str], ...]  # (name, shape, dtype), in the module's own order


@dataclass(frozen=True)
class Profile:
    """One client as the server and the checks see it. No data, and no more of the model than its shapes."""

    name: str
    architecture: str
    model: Layout  # parameters and buffers
    head: Layout
    features: int
    classes: int
    samples: int  # training samples
    spec: str = ""  # what `build` makes this architecture from
    buffers: frozenset[str] = frozenset()  # of the model's tensors, those that are not trained
    position: int = 0  # among all clients, from 0
    image: tuple[int, int, int] = (0, 0, 0)  # channels, height and width of its samples

    @property
    def statistics(self) -> Layout:
        """The running means and variances of its norms."""
        return tuple(entry for entry in self.model if entry[0].endswith(("running_mean", "running_var")))

    @property
    def size(self) -> int:
        """How many numbers the model holds."""
        return sum(math.prod(shape) for _, shape, _ in self.model)


def layout(module: nn.Module) -> Layout:
    """Names, shapes and types of everything a module's state holds."""
    return layout_of(module.state_dict())


def layout_of(weights: Mapping[str, Tensor]) -> Layout:
    return tuple((name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in weights.items())
