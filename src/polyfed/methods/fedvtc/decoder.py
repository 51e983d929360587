"""The decoder psi of FedVTC, and the layout that messages with its weights are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from torch import Tensor, nn

from polyfed.core import rng
from polyfed.core.client import copy_into
from polyfed.core.client_profile import Layout, Profile, layout
from polyfed.models.decoders import transposed_decoder
from polyfed.models.meta import meta_device


def build_decoder(weights: Mapping[str, Tensor] | None, seed: int, profile: Profile, norm: str) -> nn.Module:
    """Build a decoder with the given weights.

    Without weights it has its initial ones. They depend on the run's seed only: decoders are averaged, so that they
    must start from the same point at all clients.
    """
    with rng.seeded(seed, "decoder"):
        decoder = transposed_decoder(profile.features, profile.input_shape, norm)
    if weights is not None:
        decoder.to(next(iter(weights.values())).device)
        copy_into(decoder, weights)
    return decoder


@cache
def decoder_layout(features: int, image: tuple[int, ...], norm: str) -> Layout:
    """Return the names, shapes and types of the decoder's tensors."""
    with meta_device():
        return layout(transposed_decoder(features, image, norm))
