"""What a config asks to be kept for analysis besides accuracies: likeness of models, features, spread of updates."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from polyfed.analysis.cka import Signatures, mean_off_diagonal
from polyfed.config import EvaluateConfig
from polyfed.core.door import Door
from polyfed.core.method import Method
from polyfed.core.probes import SAMPLES
from polyfed.core.profile import Profile
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.training import Samples

MOST_ROWS = 2000  # of features in one file, over all clients


def check(wanted: EvaluateConfig, method: Method, roster: Sequence[Profile], test: Samples | None) -> None:
    """Refuse what cannot be kept, before anything runs."""
    for name in ("cka", "features"):
        if getattr(wanted, name) and (test is None or len(test) < 2):
            raise InputError(f"evaluate.{name} is true, but this dataset has no test part to show to all clients")
    if wanted.features and len({profile.features for profile in roster}) > 1:
        one, other = next((a, b) for a in roster for b in roster if a.features != b.features)
        raise InputError(
            f"evaluate.features is true, but client {one.name} has {one.features} features and client {other.name} "
            f"{other.features}; set models.feature_dim, or use evaluate.cka"
        )
    if wanted.histograms and not method.one_model:
        raise InputError(
            f"evaluate.histograms is true, but {type(method).__name__} does not keep one server model whose update "
            "could be counted; set it to false"
        )


def look(wanted: EvaluateConfig, door: Door, server: Server, clients: Sequence[str]) -> None:
    """Keep what is asked for of a round's participants, each with the model that its last step left."""
    if wanted.cka:
        _similarity(door, server, clients)
    if wanted.features:
        _features(door, server, clients)


def _similarity(door: Door, server: Server, clients: Sequence[str]) -> None:
    """Linear CKA between every two participants, at the stages that all of them have."""
    with tempfile.TemporaryDirectory(prefix="polyfed-cka-") as folder:
        signatures = Signatures(Path(folder))
        for name, got in door.evaluator.probe(clients, "signatures"):
            signatures.add(name, got.weights("signatures"))
        matrices = {layer: signatures.matrix(layer) for layer in signatures.common}
    if matrices:
        server.save_artifact("cka", **matrices)
        server.record(
            "cka",
            layers=list(matrices),
            mean=[mean_off_diagonal(matrix) for matrix in matrices.values()],
            clients=list(signatures.names),
        )


def _features(door: Door, server: Server, clients: Sequence[str]) -> None:
    """Features of some test samples: of so many that one file stays small, however many clients there are."""
    each = max(1, min(SAMPLES, MOST_ROWS // len(clients)))
    vectors: list[Tensor] = []
    classes: list[Tensor] = []
    owners: list[Tensor] = []
    for name, got in door.evaluator.probe(clients, "features"):
        total = len(got.tensor("classes"))
        chosen = torch.arange(min(each, total)) * total // min(each, total)
        vectors.append(got.tensor("vectors")[chosen])
        classes.append(got.tensor("classes")[chosen])
        owners.append(torch.full((len(chosen),), server.profile(name).position))
    if vectors:
        server.save_artifact(
            "features", vectors=torch.cat(vectors), classes=torch.cat(classes), clients=torch.cat(owners)
        )
