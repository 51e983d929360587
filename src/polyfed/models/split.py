"""Models in two parts: a backbone that maps inputs to features, and a head that maps features to logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
        self._remembers = False
        self._remembered: tuple[Tensor, _Version, Tensor] | None = None  # a batch, backbone, and features

    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch."""
        z: Tensor
        if not self._remembers:
            z = self.backbone(x)
            return z
        version = _Version(self.backbone)
        if self._remembered is not None and self._remembered[0] is x and self._remembered[1].same(version):
            return self._remembered[2]
        z = self.backbone(x)
        self._remembered = x, version, z
        return z

    @contextlib.contextmanager
    def remembered_features(self) -> Iterator[None]:
        """Compute the features of a batch once, if it is evaluated several times with the same weights."""
        self._remembers = True
        try:
            yield
        finally:
            self._remembers, self._remembered = False, None

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def has_batchnorm(self) -> bool:
        """Whether the model contains BatchNorm; training then needs batches of two samples or more."""
        return any(isinstance(module, _BatchNorm) for module in self.modules())


class _Version:
    """The tensors of a module, how often each was written to, and the mode of every part."""

    def __init__(self, module: nn.Module) -> None:
        # the tensors are kept, so that no other tensor gets the identity of one of them
        self.tensors = [*module.parameters(), *module.buffers()]
        self.state = [tensor._version for tensor in self.tensors], [part.training for part in module.modules()]

    def same(self, other: _Version) -> bool:
        return self.state == other.state and all(a is b for a, b in zip(self.tensors, other.tensors, strict=True))
