"""The attacker: a small decoder, trained on the attacker's own images, that maps uploaded rows to images."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.training.optimizers import Adam

BATCH = 64
Protect = Callable[[Tensor, torch.Generator], Tensor]  # applies the client's clipping and noise to rows


class Decoder(nn.Module):
    """Decoder from rows to images in [0, 1]."""

    def __init__(self, width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, self.height, self.width = shape
        low, across = -(-self.height // 4), -(-self.width // 4)
        self.layers = nn.Sequential(
            nn.Linear(width, 256),
            nn.ReLU(),
            nn.Linear(256, 64 * low * across),
            nn.ReLU(),
            nn.Unflatten(1, (64, low, across)),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, rows: Tensor) -> Tensor:
        images: Tensor = self.layers(rows)
        return images[:, :, : self.height, : self.width]


class Attacker:
    """A trained decoder with the mean and standard deviation that its inputs are normalised with."""

    def __init__(self, decoder: Decoder, mean: Tensor, std: Tensor) -> None:
        self.decoder, self.mean, self.std = decoder, mean, std

    @torch.no_grad()
    def reconstruct(self, rows: Tensor) -> Tensor:
        """Return the images that the attacker reconstructs from uploaded rows."""
        images: Tensor = self.decoder((rows - self.mean) / self.std)
        return images


def train(
    decoder: Decoder, rows: Tensor, images: Tensor, protect: Protect, steps: int, generator: torch.Generator
) -> Attacker:
    """Fit the decoder to pairs of a protected row and its image. Every step draws new noise."""
    protected = protect(rows, generator)
    # lower bound of the standard deviation: nearly constant features must not be scaled up without limit
    mean, std = protected.mean(0), protected.std(0).clamp_min(1e-3 * float(protected.std()) + 1e-12)
    optimizer = Adam(decoder.parameters(), lr=1e-3)
    for _ in range(steps):
        batch = torch.randint(len(rows), (min(BATCH, len(rows)),), generator=generator)
        output = decoder((protect(rows[batch], generator) - mean) / std)
        loss = F.mse_loss(output, images[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Attacker(decoder, mean, std)
