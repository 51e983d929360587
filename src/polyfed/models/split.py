"""Models in two parts: a backbone that maps inputs to features, and a head that maps features to logits."""

from __future__ import annotations

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

    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch."""
        z: Tensor = self.backbone(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def has_batchnorm(self) -> bool:
        """Whether the model contains BatchNorm; training then needs batches of two samples or more."""
        return any(isinstance(module, _BatchNorm) for module in self.modules())
