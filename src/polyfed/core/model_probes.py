"""Probes: what a client's model computes on common test samples, for analysis.

Probes are not part of a method's traffic: their bytes are not counted, and the client does not change.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from polyfed.core.cka_signature import signature
from polyfed.core.client import Client
from polyfed.core.payload import Value
from polyfed.models.stage_outputs import stage_outputs
from polyfed.training import Samples
from polyfed.training.samples import model_inputs

ProbeKind = Literal["signatures", "features"]
PROBES: tuple[str, ...] = get_args(ProbeKind)
SAMPLES = 256  # size of the probed subset of the test set


def probe_samples(test: Samples) -> Samples:
    """Return evenly spaced test samples: the same for every client in every round."""
    count = min(SAMPLES, len(test))
    return test.subset(torch.arange(count) * len(test) // count)


def run_probe(client: Client, kind: str, test: Samples) -> dict[str, Value]:
    """Return linear-CKA signatures by stage (`signatures`), or features and classes of every sample (`features`)."""
    samples = probe_samples(test)
    client.model.eval()
    x = model_inputs(samples.inputs.to(samples.labels.device))
    if kind == "features":
        with torch.no_grad():
            return {"vectors": client.model.features(x), "classes": samples.labels}
    return {"signatures": {name: signature(output) for name, output in stage_outputs(client.model, x).items()}}
