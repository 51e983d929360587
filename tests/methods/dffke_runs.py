"""Small runs of DFFKE and its variants, with every message recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import small

from polyfed.core import Method, Payload
from polyfed.core.codec import decode
from polyfed.methods.dffke import DFFKE
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.rounds import Outcome
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

WIDTH, CHANNELS = 16, 8
SMALL: dict[str, Any] = {**small.DFFKE, "width": WIDTH, "decoder_channels": CHANNELS, "batch": 8}
ROWS = [sum(counts) for counts in CLASS_COUNTS]
FLOAT = 4  # bytes


def recorded_run(
    fields: dict[str, Any] | None = None,
    shares: tuple[tuple[int, ...], ...] = CLASS_COUNTS,
    selected: Callable[[int], tuple[str, ...]] | None = None,
    method: type[Method] = DFFKE,
    **changed: Any,
) -> tuple[Outcome, RecordingEngine, dict[str, Any]]:
    """Run a method in the toy federation and return the outcome, all messages and the clients' states."""
    recorder = RecordingEngine()
    with ToyFederation(method, {**SMALL, **(fields or {})}) as toy:
        outcome = toy.run(toy.config(shares, **changed), wrap=recorder, selected=selected).checked()
        return outcome, recorder, {name: outcome.client(name)["state"] for name in outcome.ledger.digests}


def messages(recorder: RecordingEngine, step: str, way: str = "down") -> dict[str, list[Payload]]:
    """Return every message of a step by client, in the order of rounds."""
    by_client: dict[str, list[Payload]] = {}
    for message in getattr(recorder, way):
        if step in message.steps:
            fields = {name: value for frame in message.frames for name, value in decode(frame).items()}
            by_client.setdefault(message.client, []).append(Payload(fields))
    return by_client
