"""The record of the guiding vectors: events of every round, and vectors saved for figures."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core import ClassTable, Server

SAVED_ROUNDS = 12  # rounds of a run in which vectors are saved, about


def record_guidance(server: Server, pi: Tensor, senders: Tensor, uploads: Mapping[str, ClassTable]) -> None:
    """Record the size of the gradient, how far the vectors have moved, and which clients sent nothing."""
    vectors, start = server.memory.tensor("vectors"), server.memory.tensor("start")
    moved = float((vectors - start).norm() / start.norm())
    silent = [name for name, table in uploads.items() if not len(table)]
    if server.round == server.rounds or server.round % max(1, server.rounds // SAVED_ROUNDS) == 0:
        server.save_artifact("guiding_vectors", vectors=vectors, classes=torch.arange(server.classes))
    server.record("guidance", gradient=float(pi.norm()), moved=moved, silent=silent, rows=senders.tolist())
