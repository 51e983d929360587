"""The sensitivity that DFFKE's paper estimates (Appendix G): how far one changed pixel moves a row.

It is what was seen on some changes of some samples, not a bound on what can happen. It gives no guarantee.
"""

from __future__ import annotations

import math

import torch

from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.guards.clipping import PrivacyError


def classic_multiplier(epsilon: float, delta: float) -> float:
    """Eq. 15's noise of one release, in multiples of the sensitivity; its constant holds for epsilon up to 1."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def measured_sensitivity(client: Client, field: str, width: int, label: str) -> float:
    """The farthest that a row moves, over the client's samples, when one random pixel becomes a random one."""
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
    most = 0.0
    with torch.no_grad():
        for x, _ in client.clean_pass():
            samples, channels, height, across = x.shape
            rows = torch.randint(height, (samples,), generator=stream)
            columns = torch.randint(across, (samples,), generator=stream)
            changed = x.clone()
            changed[torch.arange(samples), :, rows, columns] = torch.rand(samples, channels, generator=stream)
            moved = torch.linalg.vector_norm(vector(changed) - vector(x), dim=1)
            most = max(most, float(moved.max()))
    return most
