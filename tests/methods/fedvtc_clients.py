"""Clients of the toy federation for tests of FedVTC, built without a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core import ClassTable, Client, rng
from polyfed.core.client_profile import Profile, layout
from polyfed.core.payload import Payload
from polyfed.methods.fedvtc.method import FedVTC
from polyfed.methods.fedvtc.variational_bound import VariationalBound
from polyfed.models import ModelSpec, build
from polyfed.testing.toy_federation import toy_images
from polyfed.training import Samples, TrainSettings

FAST: dict[str, Any] = {"samples_per_class": 6, "finetune_epochs": 1}
# the loss as the paper writes it
PAPER: dict[str, Any] = {"reduction": "sum", "reconstruction": 1.0, "alignment": 1.0, "noise": 1.0}
IMAGE = (1, 8, 8)
WIDTH = 64


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def client(labels: list[int], model: str = "tiny-resnet", name: str = "0", **train: Any) -> Client:
    """Build a client with images of the toy federation."""
    images, known = toy_images(max(labels.count(c) for c in range(4)), np.random.Generator(np.random.PCG64(3)))
    at = [int(np.flatnonzero(known == c)[labels[:k].count(c)]) for k, c in enumerate(labels)]
    pixels = torch.from_numpy((images[at] * 255).astype(np.uint8))[:, None]
    samples = Samples(pixels, torch.tensor(labels, dtype=torch.int64))
    with rng.seeded("model", model):
        split = build(ModelSpec(model), shape=IMAGE, classes=4)
    profile = Profile(
        name, model, layout(split), layout(split.head), split.feature_dim, 4, len(labels), model, input_shape=IMAGE
    )
    return Client(
        profile,
        split,
        samples,
        samples,
        TrainSettings(**{"batch_size": 8, "lr": 0.05, **train}),
        round=1,
        step="train",
    )


def bound_of(method: FedVTC, at: Client, prototypes: Tensor | None = None) -> VariationalBound:
    values = torch.randn(4, WIDTH, generator=stream("centres")) if prototypes is None else prototypes
    table = ClassTable(torch.arange(4), values)
    return method.variational_bound(at, Payload({"prototypes": table, "deviation": torch.full((WIDTH,), 0.7)}))
