"""Models in two parts: a backbone that maps inputs to features, and a head that maps features to logits."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from typing import Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.models.module_parts import modules_of, parameters_of, set_mode, tensors_of


class SplitModel(nn.Module):
    """A backbone from inputs (N, ...) to features (N, feature_dim), and a head from features to logits."""

    def __init__(self, backbone: nn.Module, head: nn.Module, *, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.feature_dim = feature_dim
        self.classes = classes
        self._parts: list[nn.Module] = []  # of the backbone, while features are remembered
        self._remembered: tuple[Tensor, _Version, Tensor] | None = None  # a batch, backbone, and features

    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch."""
        z: Tensor
        if not self._parts:
            z = self.backbone(x)
            return z
        version = _Version(self._parts)
        if self._remembered is not None and self._remembered[0] is x and self._remembered[1].same(version):
            return self._remembered[2]
        z = self.backbone(x)
        self._remembered = x, version, z
        return z

    @contextlib.contextmanager
    def remembered_features(self) -> Iterator[None]:
        """Compute the features of a batch once, if it is evaluated several times with the same weights."""
        self._parts = modules_of(self.backbone)
        try:
            yield
        finally:
            self._parts, self._remembered = [], None

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    # Every visit of a client needs these several times. They do what those of nn.Module do, and take less time.

    def train(self, mode: bool = True) -> Self:
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.__dict__["training"] = mode
        for child in self.children():
            set_mode(child, training=mode)
        return self

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        if remove_duplicate:
            return iter(modules_of(self))
        return (module for _, module in self.named_modules(remove_duplicate=False))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(parameters_of(modules_of(self) if recurse else [self]))

    @property
    def has_batchnorm(self) -> bool:
        """Whether the model contains BatchNorm; training then needs batches of two samples or more."""
        return any(isinstance(module, _BatchNorm) for module in self.modules())


class _Version:
    """The tensors of modules, how often each was written to, and the mode of every module."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.tensors = tensors_of(modules)  # kept, so that no other tensor gets the identity of one of them
        self.state = [tensor._version for tensor in self.tensors], [module.training for module in modules]

    def same(self, other: _Version) -> bool:
        return self.state == other.state and all(map(operator.is_, self.tensors, other.tensors))
