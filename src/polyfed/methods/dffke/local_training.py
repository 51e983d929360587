"""Local training until a goal is reached (Eq. 9)."""

from __future__ import annotations

from polyfed.core import Client
from polyfed.training import score


def train_to_accuracy(client: Client, goal: float, max_epochs: int) -> tuple[int, float]:
    """Train epoch by epoch until the training accuracy in evaluation mode reaches the goal.

    Every epoch uses a new optimiser. Return the number of epochs and the final training accuracy.
    """
    epochs, accuracy = 0, train_accuracy(client)
    while accuracy < goal and epochs < max_epochs:
        if not client.fit(epochs=1, steps=client.settings.steps, purpose=f"local {epochs}").steps:
            break  # a single sample, on which BatchNorm cannot be trained
        epochs, accuracy = epochs + 1, train_accuracy(client)
    return epochs, accuracy


def train_accuracy(client: Client) -> float:
    """Return the accuracy on the client's training samples, 1 if it has none."""
    client.model.eval()
    return score(client.model, client.train).accuracy if len(client.train) else 1.0
