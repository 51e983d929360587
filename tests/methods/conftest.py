"""Hand-made clients: linear models on images of one pixel height, so that a step can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.core.client_profile import Profile, layout
from polyfed.models.split import SplitModel
from polyfed.training import Samples, TrainSettings


@dataclass(frozen=True)
class Linears:
    """Makes clients whose model is two linear layers: `pixels` to `features` to `classes`."""

    pixels: int = 4
    features: int = 3
    classes: int = 3
    norm: bool = False  # BatchNorm in between
    whole_head: bool = False  # all layers are the head
    settings: dict[str, Any] = field(default_factory=dict)

    def model(self, seed: str = "common") -> SplitModel:
        with rng.seeded(seed):
            first, last = nn.Linear(self.pixels, self.features), nn.Linear(self.features, self.classes)
            norm = [nn.BatchNorm1d(self.features)] if self.norm else []
        if self.whole_head:
            head: nn.Module = nn.Sequential(first, *norm, last)
            return SplitModel(nn.Flatten(), head, feature_dim=self.pixels, classes=self.classes)
        backbone = nn.Sequential(nn.Flatten(), first, *norm)
        return SplitModel(backbone, last, feature_dim=self.features, classes=self.classes)

    def samples(self, labels: Sequence[int], seed: str) -> Samples:
        pixels = torch.randint(0, 256, (len(labels), 1, 1, self.pixels), generator=rng.generator(seed))
        return Samples(pixels.to(torch.uint8), torch.tensor(labels, dtype=torch.int64))

    def client(self, name: str, labels: Sequence[int], seed: str = "common", data: str = "") -> Client:
        model = self.model(seed)
        train, test = self.samples(labels, data or f"train {name}"), self.samples(labels, f"test {name}")
        profile = Profile(
            name,
            "linear",
            layout(model),
            layout(model.head),
            model.feature_dim,
            self.classes,
            len(labels),
            position=int(name),
            input_shape=(train.inputs.shape[1], train.inputs.shape[2], train.inputs.shape[3]),
        )
        settings = TrainSettings(**{"batch_size": 100, "lr": 0.1, **self.settings})
        return Client(profile, model, train, test, settings)

    def several(self, *labels: Sequence[int], seeds: Sequence[str] | None = None) -> list[Callable[[], Client]]:
        """One client for each list of labels, called '0', '1', ..."""

        def maker(k: int) -> Callable[[], Client]:
            return lambda: self.client(str(k), labels[k], "common" if seeds is None else seeds[k])

        return [maker(k) for k in range(len(labels))]


@pytest.fixture
def linears() -> type[Linears]:
    return Linears
