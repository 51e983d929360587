"""Synthetic images of a run, saved for `polyfed figure synthetic`."""

from __future__ import annotations

import torch

from polyfed.core import Server
from polyfed.methods.fedvtc.decoder import build_decoder
from polyfed.methods.fedvtc.synthetic_samples import generate

IMAGES_PER_CLASS = 8


def save_synthetic_images(server: Server, norm: str) -> None:
    """Save a few synthetic images of every class that has a prototype."""
    samples = generate(
        build_decoder(server.memory.weights("decoder"), server.seed, server.roster[0], norm),
        server.memory.table("prototypes"),
        server.memory.tensor("deviation"),
        classes=server.roster[0].classes,
        per_class=IMAGES_PER_CLASS,
        generator=server.stream("shown"),
    )
    if len(samples):
        images = samples.render(torch.arange(len(samples)))
        server.save_artifact("synthetic", images=images, labels=samples.labels)
