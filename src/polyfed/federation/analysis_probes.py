"""Probes that a config asks for besides accuracies: CKA similarity of client models, features, update histograms."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from polyfed.analysis.cka import Signatures, mean_off_diagonal
from polyfed.config import EvaluateConfig
from polyfed.core.client_profile import Profile
from polyfed.core.door import Door
from polyfed.core.method import Method
from polyfed.core.model_probes import SAMPLES
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.training import Samples

MAX_FEATURE_ROWS = 2000  # in one file, over all clients


def check_probes(settings: EvaluateConfig, method: Method, roster: Sequence[Profile], test: Samples | None) -> None:
    """Raise `InputError` if a probe is not possible with this method, these models or this data."""
    for name in ("cka", "features"):
        if getattr(settings, name) and (test is None or len(test) < 2):
            raise InputError(f"evaluate.{name} is true, but this dataset has no common test split")
    if settings.features and len({profile.features for profile in roster}) > 1:
        one, other = next((a, b) for a in roster for b in roster if a.features != b.features)
        raise InputError(
            f"evaluate.features is true, but client {one.name} has {one.features} features and client {other.name} "
            f"{other.features}; set models.feature_dim, or use evaluate.cka"
        )
    if settings.histograms and not method.one_model:
        raise InputError(
            f"evaluate.histograms is true, but {type(method).__name__} does not have one server model, whose updates "
            "the histograms show; set it to false"
        )


def run_probes(settings: EvaluateConfig, door: Door, server: Server, clients: Sequence[str]) -> None:
    """Probe the participants' models after a round, and save the results as artifacts of the server."""
    if settings.cka:
        _probe_similarity(door, server, clients)
    if settings.features:
        _probe_features(door, server, clients)


def _probe_similarity(door: Door, server: Server, clients: Sequence[str]) -> None:
    """Save linear CKA between every two participants, at the stages that all of them have."""
    with tempfile.TemporaryDirectory(prefix="polyfed-cka-") as folder:
        signatures = Signatures(Path(folder))
        for name, reply in door.evaluator.probe(clients, "signatures"):
            signatures.add(name, reply.weights("signatures"))
        matrices = {layer: signatures.matrix(layer) for layer in signatures.common}
    if matrices:
        server.save_artifact("cka", **matrices)
        server.record(
            "cka",
            layers=list(matrices),
            mean=[mean_off_diagonal(matrix) for matrix in matrices.values()],
            clients=list(signatures.names),
        )


def _probe_features(door: Door, server: Server, clients: Sequence[str]) -> None:
    """Save features of some test samples. The file's size is bounded for any number of clients."""
    rows_per_client = max(1, min(SAMPLES, MAX_FEATURE_ROWS // len(clients)))
    vectors: list[Tensor] = []
    classes: list[Tensor] = []
    owners: list[Tensor] = []
    for name, reply in door.evaluator.probe(clients, "features"):
        total = len(reply.tensor("classes"))
        rows = torch.arange(min(rows_per_client, total)) * total // min(rows_per_client, total)
        vectors.append(reply.tensor("vectors")[rows])
        classes.append(reply.tensor("classes")[rows])
        owners.append(torch.full((len(rows),), server.profile(name).position))
    if vectors:
        server.save_artifact(
            "features", vectors=torch.cat(vectors), classes=torch.cat(classes), clients=torch.cat(owners)
        )
