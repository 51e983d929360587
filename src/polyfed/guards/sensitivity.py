"""Empirical sensitivity as in DFFKE's paper (Appendix G): how much one changed pixel changes a row.

It is measured on random changes of some samples. It is not a bound and gives no privacy guarantee.
"""

from __future__ import annotations

import math

import torch

from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.guards.clipping import PrivacyError


def classic_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of Eq. 15 for one release. Its constant is valid for epsilon up to 1."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def measured_sensitivity(client: Client, field: str, width: int, label: str) -> float:
    """Return the largest change of a row over the client's samples, if one random pixel gets a random value."""
    if width == client.profile.features:
        vector = client.model.features
    elif width == client.profile.classes:
        vector = client.model
    else:
        raise PrivacyError(
            f"field '{field}' has rows of {width} numbers, which are neither features ({client.profile.features}) "
            f"nor outputs ({client.profile.classes}) of a sample, so sensitivity: measured cannot be used; give clip"
        )
    stream = rng.generator(client.seed, "sensitivity", field, client.name, client.round, label)
    largest = 0.0
    with torch.no_grad():
        for x, _ in client.clean_pass():
            samples, channels, height, width_pixels = x.shape
            rows = torch.randint(height, (samples,), generator=stream).to(x.device)
            columns = torch.randint(width_pixels, (samples,), generator=stream).to(x.device)
            values = torch.rand(samples, channels, generator=stream).to(x.device)
            changed = x.clone()
            changed[torch.arange(samples, device=x.device), :, rows, columns] = values
            distances = torch.linalg.vector_norm(vector(changed) - vector(x), dim=1)
            largest = max(largest, float(distances.max()))
    return largest
