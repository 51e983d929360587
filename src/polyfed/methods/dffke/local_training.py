"""Local training until a goal is reached (Eq. 9), and the optimiser of exchange and local training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import Client
from polyfed.core.payload import view
from polyfed.methods.dffke.messages import subtree
from polyfed.training import TrainSettings, score
from polyfed.training.fit import make_optimizer
from polyfed.training.optimizer_state import load_tensors, state_tensors

WEIGHT_DECAY = 0.00001  # in the exchange, as in the released code
Stop = Literal["running", "evaluated"]  # how training accuracy is measured after an epoch


def train_to_accuracy(client: Client, goal: float, max_epochs: int, stop: Stop) -> tuple[int, float]:
    """Train epoch by epoch until the training accuracy reaches the goal.

    There is no training if the model reaches the goal in evaluation mode. After an epoch, the accuracy is either the
    running one (the predictions of its training batches) or evaluated anew. All epochs have one optimiser, which
    continues that of the exchange in the same round. Return the number of epochs and the last accuracy.
    """
    epochs, accuracy, optimizer = 0, train_accuracy(client), local_optimizer(client)
    while accuracy < goal and epochs < max_epochs:
        running = RunningAccuracy(client.model)
        fit = client.fit(
            running.loss, epochs=1, steps=client.settings.steps, purpose=f"local {epochs}", continue_with=optimizer
        )
        if not fit.steps:
            break  # a single sample, on which BatchNorm cannot be trained
        epochs, accuracy = epochs + 1, running.value() if stop == "running" else train_accuracy(client)
    return epochs, accuracy


class RunningAccuracy:
    """The accuracy of a model on the batches that it is trained on, before each step."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._correct: list[Tensor] = []
        self._samples = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy, and count correct predictions."""
        logits = self._model(x)
        self._correct.append((logits.detach().argmax(1) == y).sum())
        self._samples += len(y)
        return F.cross_entropy(logits, y)

    def value(self) -> float:
        return float(torch.stack(self._correct).sum()) / self._samples if self._samples else 1.0


def train_accuracy(client: Client) -> float:
    """Return the accuracy on the client's training samples in evaluation mode, 1 if it has none."""
    client.model.eval()
    return score(client.model, client.train).accuracy if len(client.train) else 1.0


# The released code has one Adam per round. Exchange and local training are two steps here, with an evaluation in
# between, so the first leaves the moments of its Adam in the client's state for the second.


def exchange_optimizer(modules: Iterable[nn.Module], lr: float) -> torch.optim.Optimizer:
    """Return a new Adam for the exchange."""
    settings = TrainSettings(optimizer="adam", lr=lr, weight_decay=WEIGHT_DECAY)
    return make_optimizer((p for module in modules for p in module.parameters()), settings)


def keep_optimizer(client: Client, optimizer: torch.optim.Optimizer) -> None:
    """Keep the moments of the model's parameters, which are the first of the optimiser, for local training."""
    trained = sum(p.requires_grad for p in client.model.parameters())
    moments = {key: t for key, t in state_tensors(optimizer).items() if int(key.split(".")[0]) < trained}
    client.state["adam"] = {"round": client.round, "moments": moments}


def local_optimizer(client: Client) -> torch.optim.Optimizer:
    """Return the optimiser of `train`. Adam continues from the moments of this round's exchange, if there was one."""
    optimizer = make_optimizer(client.model.parameters(), client.settings)
    kept = view(subtree(client.state.pop("adam", None)))
    if client.settings.optimizer == "adam" and kept.get("round") == client.round:
        load_tensors(optimizer, kept.weights("moments"))
    return optimizer
