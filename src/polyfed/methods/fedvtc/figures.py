"""Synthetic images of a run, saved for `polyfed figure synthetic`."""

from __future__ import annotations

import torch

from polyfed.core import Server
from polyfed.methods.fedvtc.synthetic_samples import SyntheticSamples

IMAGES_PER_CLASS = 8


def save_synthetic_images(server: Server, samples: SyntheticSamples) -> None:
    """Save a few synthetic images of every class that has a prototype."""
    if len(samples):
        images = samples.render(torch.arange(len(samples)))
        server.save_artifact("synthetic", images=images, labels=samples.labels)
