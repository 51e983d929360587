"""The server's feature transformer F, which maps directions to latents of the generator, and its training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import ClassTable
from polyfed.core.class_tables import class_means
from polyfed.core.row_training import fit_rows
from polyfed.models.generators import draw_latents
from polyfed.training import TrainSettings

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


def feature_transformer(classes: int, latent_width: int) -> nn.Sequential:
    """Build F: linear, BatchNorm, ReLU, linear."""
    hidden = nn.Linear(classes, classes)
    return nn.Sequential(hidden, nn.BatchNorm1d(classes), nn.ReLU(), nn.Linear(classes, latent_width))


def mmd(x: Tensor, y: Tensor, bandwidths: tuple[float, ...] = BANDWIDTHS) -> Tensor:
    """Return the squared maximum mean discrepancy of two samples, summed over kernels exp(-distance^2 / (2 a))."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = (a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T).clamp(min=0)
        return torch.stack([torch.exp(-squared / (2 * width)) for width in bandwidths]).sum(0).mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def train_transformer(
    transformer: nn.Module,
    generator: nn.Module,
    uploads: Sequence[ClassTable],
    settings: TrainSettings,
    stream: torch.Generator,
    *,
    classes: int,
    latent_width: int,
    alignment: float,
) -> ClassTable:
    """Train F on MMD(F(q), latents) + alignment MSE(F(q), centroid_y), and return the class means of F(q).

    The first term gives F(q) the distribution of the generator's latents, the second gathers each class.
    """

    def centroids() -> ClassTable:
        transformer.eval()
        rows = ((table.values, table.classes) for table in uploads)
        return class_means(rows, transformer, classes, latent_width).without_counts()

    # the centroids are trained together with F, as in the released code
    trained = nn.Embedding(classes, latent_width, _weight=centroids().dense(classes)[0])

    def loss(q: Tensor, y: Tensor, latents: Tensor) -> Tensor:
        mapped = transformer(q)
        return mmd(mapped, latents) + alignment * F.mse_loss(mapped, trained(y))

    fit_rows(
        [transformer, trained],
        loss,
        uploads,
        settings,
        stream,
        draw=lambda batch: (draw_latents(generator, batch, stream),),
    )
    return centroids()
