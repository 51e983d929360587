"""A model cut in two: a backbone that turns images into features, and a head that turns features into logits."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SplitModel(nn.Module):
    """Backbone: images in [0, 1], (N, C, H, W), to features (N, feature_dim); head: features to logits."""

    def __init__(self, backbone: nn.Module, head: nn.Module, *, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.feature_dim = feature_dim
        self.classes = classes

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.backbone(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def has_batchnorm(self) -> bool:
        """Whether a BatchNorm is anywhere inside: then training needs batches of two or more."""
        return any(isinstance(module, _BatchNorm) for module in self.modules())
