"""Units of reconstruction. Pictures are in [0, 1]; the channels of series and the columns of tables have any scale.

Clients upload mean and variance of every channel (or column) once. The server pools them, and clients measure the
error of reconstruction in common units: two standard deviations on either side of the mean have length 1 in total.
Errors then have the size that they have on pixels, and the same weights of losses apply.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core import Client, Payload
from polyfed.core.client_profile import Profile
from polyfed.training.samples import model_inputs

RANGE = 4.0  # standard deviations that have length 1


def has_units(profile: Profile) -> bool:
    """Return whether samples are scaled: all but pictures."""
    return len(profile.input_shape) < 3


def channels(method: object, profile: Profile) -> int:
    """Return the number of channels of a series or columns of a table, as a dimension of a message field."""
    return profile.input_shape[0]


def channel_moments(client: Client) -> Tensor:
    """Return mean and variance of every channel or column over the training samples, as (2, channels)."""
    inputs = model_inputs(client.train.inputs)
    variance, mean = torch.var_mean(inputs, [0, *range(2, inputs.ndim)], correction=0)
    return torch.stack([mean, variance])


def pooled_moments(reported: Mapping[str, Tensor], samples: Mapping[str, int]) -> Tensor:
    """Return mean and standard deviation over the samples of all clients, as (2, channels).

    Total variance = mean variance within clients + variance of the clients' means. A constant channel gets 1.
    """
    counts = torch.tensor([samples[name] for name in reported], dtype=torch.float64)
    means, variances = torch.stack([moments.cpu().double() for moments in reported.values()]).unbind(1)
    weights = counts / counts.sum()
    mean = weights @ means
    variance = weights @ (variances + (means - mean).square())
    return torch.stack([mean, torch.where(variance > 0, variance, 1.0).sqrt()]).float()


class Units:
    """Conversion between samples and what a decoder produces. Pictures stay as they are."""

    def __init__(self, msg: Payload, profile: Profile) -> None:
        self.mean: Tensor | None = None
        if "units" in msg:
            shape = (-1, *(1 for _ in profile.input_shape[1:]))
            mean, std = msg.tensor("units")
            self.mean, self.range = mean.reshape(shape), RANGE * std.reshape(shape)

    def scaled(self, samples: Tensor) -> Tensor:
        """Return samples in the units of the decoder."""
        return samples if self.mean is None else (samples - self.mean) / self.range

    def restored(self, decoded: Tensor) -> Tensor:
        """Return what a decoder produced in the units of the samples."""
        return decoded if self.mean is None else self.mean + self.range * decoded
