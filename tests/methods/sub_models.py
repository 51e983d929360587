"""Helpers for tests of methods with sub-models."""

from __future__ import annotations

from typing import Any

from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.core.server import Server
from polyfed.models import build
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.toy_federation import ToyFederation

HALF, WHOLE = "tiny-resnet@0.5", "tiny-resnet"  # what clients of the toy federation have, in turn
# HeteroFL without what FedAvg does not have
PLAIN: dict[str, Any] = {"mask_absent_classes": False, "bn": "average", "clip_norm": None}


def server_of(toy: ToyFederation, **changed: Any) -> Server:
    """Return the server before its first round."""
    federation = toy.federation(toy.config(**changed))
    server = federation.server(federation.profiles())
    federation.method.init(server)
    return server


def replies(recorder: RecordingEngine, step: str) -> dict[str, Payload]:
    """Return the last replies of clients to a step."""
    return {m.client: decode(m.frames[0]) for m in recorder.up if m.steps == (step,)}


def sizes(spec: str) -> tuple[int, int]:
    """Return the number of trained entries, and of running means and variances."""
    model = build(spec, shape=(1, 8, 8), classes=4)
    statistics = [t.numel() for n, t in model.state_dict().items() if n.endswith(("running_mean", "running_var"))]
    return sum(p.numel() for p in model.parameters()), sum(statistics)
