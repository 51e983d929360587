"""The attacker: a small decoder that learns, on pictures of its own, which picture gives which row."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 64
Leak = Callable[[Tensor, torch.Generator], Tensor]  # what a row looks like to the attacker once it was protected


class Decoder(nn.Module):
    """From rows to pictures in [0, 1]."""

    def __init__(self, width: int, shape: tuple[int, int, int]) -> None:
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
        pictures: Tensor = self.layers(rows)
        return pictures[:, :, : self.height, : self.width]


class Attacker:
    """A decoder with the scale that it was trained at."""

    def __init__(self, decoder: Decoder, centre: Tensor, spread: Tensor) -> None:
        self.decoder, self.centre, self.spread = decoder, centre, spread

    @torch.no_grad()
    def pictures(self, rows: Tensor) -> Tensor:
        made: Tensor = self.decoder((rows - self.centre) / self.spread)
        return made


def train(
    decoder: Decoder, rows: Tensor, pictures: Tensor, leak: Leak, steps: int, stream: torch.Generator
) -> Attacker:
    """Fit the decoder to (row as it would leave, picture); noise is drawn anew in every step."""
    seen = leak(rows, stream)
    # Numbers that hardly vary would blow up by their own spread, so none is divided by less than the common one.
    centre, spread = seen.mean(0), seen.std(0).clamp_min(1e-3 * float(seen.std()) + 1e-12)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)
    for _ in range(steps):
        at = torch.randint(len(rows), (min(BATCH, len(rows)),), generator=stream)
        made = decoder((leak(rows[at], stream) - centre) / spread)
        loss = F.mse_loss(made, pictures[at])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Attacker(decoder, centre, spread)
