"""Models in two parts: a backbone that maps inputs to features, and a head that maps features to logits."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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
        self._parts = list(self.backbone.modules())
        try:
            yield
        finally:
            self._parts, self._remembered = [], None

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def has_batchnorm(self) -> bool:
        """Whether the model contains BatchNorm; training then needs batches of two samples or more."""
        return any(isinstance(module, _BatchNorm) for module in self.modules())


class _Version:
    """The tensors of modules, how often each was written to, and the mode of every module."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        # the tensors are kept, so that no other tensor gets the identity of one of them
        self.tensors = [
            tensor
            for module in modules
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        ]
        self.state = [tensor._version for tensor in self.tensors], [module.training for module in modules]

    def same(self, other: _Version) -> bool:
        return self.state == other.state and all(map(operator.is_, self.tensors, other.tensors))
