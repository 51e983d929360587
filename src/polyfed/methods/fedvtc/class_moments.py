"""Mean and variance of the features of each class over all clients, from first and second moments."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfed.core import ClassTable, Client


def class_moments(client: Client, min_count: int) -> ClassTable:
    """Return, for each class of a client, the mean of its features followed by the mean of their squares."""

    def moments(x: Tensor) -> Tensor:
        z = client.model.features(x)
        return torch.cat([z, z.square()], 1)

    return client.class_means(moments, 2 * client.profile.features, min_count=min_count).without_counts()


def mean_and_variance(moments: ClassTable) -> tuple[ClassTable, ClassTable]:
    """Return class means and variances. For moments averaged over clients, the latter are within and between them."""
    mean, square = moments.values.double().tensor_split(2, dim=1)
    variance = (square - mean.square()).clamp(min=0)  # noise for privacy can make it negative
    return ClassTable(moments.classes, mean.float()), ClassTable(moments.classes, variance.float())
