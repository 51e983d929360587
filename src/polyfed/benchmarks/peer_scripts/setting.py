"""The task that all libraries train: the same CNNs, samples and steps. It imports torch and numpy only.

A program reads one line from stdin for each round and answers with one line of JSON: seconds and accuracy.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, FEATURES = 10, 512
# convolutions and hidden layers of the four CNNs: 0.6, 0.8, 2.4 and 2.6 million parameters
SHAPES = ((2, 1), (2, 2), (1, 1), (1, 2))
BATCH, LEARNING_RATE = 10, 0.05


class PeerCNN(nn.Module):
    """Convolutions with pooling, hidden layers and a classifier, for grey images of 28x28."""

    def __init__(self, convolutions: int = 2, hidden: int = 1) -> None:
        super().__init__()
        channels = (1, 32, 64)[: convolutions + 1]
        side = {1: 12, 2: 4}[convolutions]  # of the image after the last pooling
        widths = (channels[-1] * side**2, *hidden * [FEATURES])
        self.convolutions = nn.ModuleList(nn.Conv2d(n, m, 5) for n, m in pairwise(channels))
        self.hidden = nn.ModuleList(nn.Linear(n, m) for n, m in pairwise(widths))
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = F.max_pool2d(F.relu(convolution(x)), 2)
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        out: Tensor = self.fc(x)
        return out


class Share:
    """Training and test samples of every client, common test samples, and the initial weights of the first CNN."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "samples.npz") as arrays:
            self._tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        self.clients = sum(name.startswith("train_x") for name in self._tensors)

    def samples(self, part: str, client: int | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of a part: `train` or `test` of a client, or the common `test`."""
        suffix = "" if client is None else str(client)
        return self._tensors[f"{part}_x{suffix}"], self._tensors[f"{part}_y{suffix}"]

    def initial_model(self) -> PeerCNN:
        """Return the first CNN with polyfed's initial weights."""
        model = PeerCNN()
        model.load_state_dict({name: self._tensors[f"initial_{name}"] for name in model.state_dict()})
        return model


def train(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> None:
    """Train one epoch with the fastest settings that torch has for this model on a CPU."""
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, fused=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    for batch in torch.split(order, BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the fraction of correct predictions."""
    model.eval()
    return float((model(x).argmax(1) == y).float().mean())


class Rounds:
    """The requests for rounds on stdin. The time between a request and its answer is the time of the round."""

    def __init__(self) -> None:
        self._began = 0.0

    def wait(self) -> bool:
        """Wait for the next request. Return False at the end of the input."""
        requested = bool(sys.stdin.readline())
        self._began = time.perf_counter()
        return requested

    def answer(self, **facts: Any) -> None:
        """Report the round that has just ended."""
        report = {"seconds": time.perf_counter() - self._began, **facts}
        sys.__stdout__.write("\n" + json.dumps(report) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
