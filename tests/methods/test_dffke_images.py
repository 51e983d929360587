"""DFFKE's synthetic images: decoded once per process, or when they are needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.dffke_runs import CHANNELS, WIDTH
from torch import Tensor

from polyfed.core.client import weights_of
from polyfed.core.codec import content_hash
from polyfed.core.rng import generator, seeded
from polyfed.methods.dffke import image_cache, synthetic_images
from polyfed.methods.dffke.decoder import EmbeddingDecoder, decode, decoder_skeleton
from polyfed.methods.dffke.image_cache import ImageCache
from polyfed.methods.dffke.synthetic_images import SyntheticImages


def decoder_weights() -> dict[str, Tensor]:
    with seeded("decoder"):
        return weights_of(EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS))


def test_clients_of_a_process_share_decoded_images(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counted(*args: Any) -> Tensor:
        decoded.append(len(args[2]))
        return decode(*args)

    monkeypatch.setattr(image_cache, "decode", counted)
    skeleton = decoder_skeleton(WIDTH, (1, 8, 8), CHANNELS)
    first, second = decoder_weights(), {**decoder_weights(), "pixel_mean": torch.zeros(1)}
    codes, rows = torch.randn(300, WIDTH, generator=generator("shared")), torch.arange(290, 300)
    cache = ImageCache(capacity=2 * 300 * 64 * 4)

    def images(weights: dict[str, Tensor], at: Tensor = codes) -> Tensor:
        return cache.images(skeleton, weights, content_hash(weights), at)[rows]

    direct = decode(skeleton, first, codes[rows]).flatten(1)
    assert torch.allclose(images(first), direct, atol=1e-6)
    assert torch.equal(images({name: tensor.clone() for name, tensor in first.items()}), images(first, codes.clone()))
    assert decoded == [150, 150]  # once, in batches of at most 256
    assert not torch.allclose(images(second), direct, atol=0.01)
    assert len(images(second, codes + 1)) == len(rows)  # the third set of images: the first is dropped
    del decoded[:]
    images(second)
    assert decoded == []
    images(first)
    assert decoded == [150, 150]


def test_images_that_do_not_fit_into_the_cache_are_decoded_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, codes = decoder_weights(), {"a": torch.randn(20, WIDTH, generator=generator("large"))}
    rows, skeleton = torch.arange(5, 15), decoder_skeleton(WIDTH, (1, 8, 8), CHANNELS)
    rounds = dict.fromkeys(("000001", "000002", "000003"), (weights, codes))
    monkeypatch.setattr(synthetic_images, "CAPACITY", 2 * 20 * 64 * 4)
    on_demand: list[int] = []

    def counted(*args: Any) -> Tensor:
        on_demand.append(len(args[2]))
        return decode(*args)

    monkeypatch.setattr(synthetic_images, "decode", counted)
    images = SyntheticImages(skeleton, rounds)
    for key, expected in (("000003", []), ("000001", []), ("000002", [10])):  # the newest, then the oldest first
        assert torch.allclose(images.images(key, "a", rows), decode(skeleton, weights, codes["a"][rows]), atol=1e-6)
        assert on_demand == expected
