"""Looking into clients' models for analysis: what they make of common test samples, as their last step left them.

No part of a method's traffic: nothing is counted, and no trace is left at the client.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from polyfed.core.client import Client
from polyfed.core.payload import Value
from polyfed.models.stage_outputs import stage_outputs
from polyfed.training import Samples
from polyfed.training.cka_kernels import signature
from polyfed.training.samples import as_floats

Look = Literal["signatures", "features"]
PROBES: tuple[str, ...] = get_args(Look)
SAMPLES = 256  # of the test set, spread evenly over it


def batch(test: Samples) -> Samples:
    """The test samples that every client is shown: the same for all, in every round."""
    count = min(SAMPLES, len(test))
    return test.subset(torch.arange(count) * len(test) // count)


def look(client: Client, what: str, test: Samples) -> dict[str, Value]:
    """`signatures`: by stage, what enters linear CKA; `features`: the features of every sample, and its class."""
    shown = batch(test)
    client.model.eval()
    x = as_floats(shown.images)
    if what == "features":
        with torch.no_grad():
            return {"vectors": client.model.features(x), "classes": shown.labels}
    return {"signatures": {name: signature(output) for name, output in stage_outputs(client.model, x).items()}}
