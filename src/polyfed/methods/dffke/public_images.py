"""Images that everybody may have: a dataset of the catalogue, without its labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfed.data.dataset import load

if TYPE_CHECKING:
    import torch


def public_images(name: str, limit: int, stream: torch.Generator) -> torch.Tensor:
    """At most so many training images of a dataset, drawn from the stream: uint8, (n, C, H, W)."""
    import torch

    images = load(name).train.images
    return images[torch.randperm(len(images), generator=stream)[:limit]].clone()
