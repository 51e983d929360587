"""FedVTC: decoders, synthetic samples, and fine-tuning on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.fedvtc_clients import IMAGE, WIDTH, client, stream
from torch import Tensor, nn

from polyfed import catalogue
from polyfed.config import loading, parse
from polyfed.core import ClassTable, Client, rng
from polyfed.core.client import weights_of
from polyfed.errors import InputError
from polyfed.methods.fedvtc import synthetic_samples
from polyfed.methods.fedvtc.fine_tuning import fine_tune
from polyfed.methods.fedvtc.method import FedVTC
from polyfed.methods.fedvtc.synthetic_samples import generate, recalibrate_decoder
from polyfed.models.decoders import latent_map, transposed_decoder
from polyfed.testing.toy_federation import toy_images
from polyfed.training import TrainSettings


@pytest.mark.parametrize(
    ("image", "features", "parameters", "start"),
    [
        ((1, 28, 28), 980, 21_043, (20, 7, 7)),
        ((3, 32, 32), 4096, 91_625, (64, 8, 8)),
        ((3, 64, 64), 32_768, 179_785, (128, 16, 16)),
        ((3, 64, 64), 4096, None, (16, 16, 16)),
        ((1, 8, 8), 64, None, (16, 2, 2)),
    ],
)
def test_decoders_have_the_sizes_of_table_6(
    image: tuple[int, int, int], features: int, parameters: int | None, start: tuple[int, int, int]
) -> None:
    assert latent_map(features, image) == start
    with rng.seeded("decoder"):
        decoder = transposed_decoder(features, image)
    images = decoder(5 * torch.randn(2, features, generator=stream()))
    assert images.shape == (2, *image)
    assert 0 <= images.min().item() < images.max().item() <= 1
    if parameters is not None:
        assert sum(p.numel() for p in decoder.parameters()) == parameters
    with rng.seeded("decoder"):
        grouped = transposed_decoder(features, image, norm="group")
    assert not any(isinstance(part, nn.BatchNorm2d) for part in grouped.modules())
    assert grouped(torch.zeros(1, features)).shape == (1, *image)


def test_features_that_do_not_fit_the_decoder_are_rejected() -> None:
    with pytest.raises(InputError, match=r"64 features; .* multiple of 49 .*; set models\.feature_map: \[20, 7, 7\]"):
        latent_map(64, (1, 28, 28))
    with pytest.raises(InputError, match=r"1x30x28; .* divisible by 4"):
        latent_map(64, (1, 30, 28))


@settings(max_examples=20, deadline=None)
@given(each=st.integers(1, 9), size=st.integers(1, 12), drop=st.booleans())
def test_every_class_with_a_prototype_has_synthetic_samples(each: int, size: int, drop: bool) -> None:
    with rng.seeded("decoder"):
        decoder = transposed_decoder(WIDTH, IMAGE)
    table = ClassTable.of({c: torch.full((WIDTH,), float(c)) for c in (1, 2)}, WIDTH)
    samples = generate(
        decoder, table, torch.full((WIDTH,), 0.1), classes=4, per_class=each, generator=stream("samples")
    )
    assert torch.bincount(samples.labels, minlength=4).tolist() == [0, each, each, 0]  # 0 and 3 have no prototype
    passes = [list(samples.batches(size, shuffle=stream(name), drop_single=drop)) for name in ("one", "one", "two")]
    for batches in passes:
        dropped = len(samples) % size == 1 and drop
        assert sum(len(y) for _, y in batches) == len(samples) - dropped
        assert all(x.shape == (len(y), *IMAGE) and float(x.min()) >= 0 and float(x.max()) <= 1 for x, y in batches)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(passes[0], passes[1], strict=True))
    # another order gives the same images, because an image depends on its own seed only
    if not drop:
        sums = [torch.cat([x for x, _ in batches]).sum((1, 2, 3)).sort().values for batches in passes]
        assert torch.allclose(sums[0], sums[2], atol=1e-4)


def test_latents_have_the_prototype_as_mean() -> None:
    class Latents(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v[:, :, None, None]

    table = ClassTable.of({0: torch.tensor([3.0, -3.0]), 1: torch.tensor([0.0, 10.0])}, 2)
    deviation = torch.tensor([0.5, 2.0])
    samples = generate(Latents(), table, deviation, classes=2, per_class=4000, generator=stream())
    v = samples.render(torch.arange(len(samples)))[:, :, 0, 0]
    assert torch.allclose(v[:4000].mean(0), torch.tensor([3.0, -3.0]), atol=0.12)
    assert torch.allclose(v[4000:].mean(0), torch.tensor([0.0, 10.0]), atol=0.12)
    assert torch.allclose(v[:4000].std(0), torch.tensor([0.5, 2.0]), rtol=0.05)


def test_each_class_has_its_own_deviation() -> None:
    table = ClassTable.of({0: torch.zeros(2), 1: torch.zeros(2)}, 2)
    deviation = torch.tensor([[0.5, 2.0], [3.0, 0.1]])
    samples = generate(nn.Identity(), table, deviation, classes=2, per_class=4000, generator=stream())
    v = samples.latents(torch.arange(len(samples)))
    assert torch.allclose(torch.stack([v[:4000].std(0), v[4000:].std(0)]), deviation, rtol=0.05)


def test_recalibrated_decoders_are_normalised_on_the_latents_that_they_decode() -> None:
    with rng.seeded("decoder"):
        decoder = transposed_decoder(WIDTH, IMAGE)
    first = next(part for part in decoder.modules() if isinstance(part, nn.BatchNorm2d))
    with torch.no_grad():
        first.running_mean.fill_(50.0)  # type: ignore[union-attr]  # statistics of another distribution
    centres = ClassTable(torch.arange(4), 3 * torch.randn(4, WIDTH, generator=stream("centres")))
    samples = generate(decoder, centres, torch.full((4, WIDTH), 0.3), classes=4, per_class=256, generator=stream())
    seen: list[Tensor] = []
    first.register_forward_hook(lambda *call: seen.append(call[2].detach()))
    weights = {name: p.detach().clone() for name, p in decoder.named_parameters()}

    def moments() -> tuple[Tensor, Tensor]:
        seen.clear()
        samples.render(torch.arange(len(samples)))
        normalised = torch.cat(seen)
        return normalised.mean((0, 2, 3)), normalised.std((0, 2, 3))

    assert float(moments()[0].abs().min()) > 5
    recalibrate_decoder(samples, stream("order"))
    mean, deviation = moments()
    # weight 1 and bias 0: normalised outputs of the layer have mean 0 and deviation 1
    assert torch.allclose(mean, torch.zeros_like(mean), atol=0.1)
    assert torch.allclose(deviation, torch.ones_like(mean), atol=0.1)
    assert all(torch.equal(weights[name], p) for name, p in decoder.named_parameters())


def test_fine_tuning_on_good_images_teaches_classes_that_a_client_does_not_have() -> None:
    # The decoder is replaced by a function that returns the pattern of the class.
    class Painter(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v.reshape(-1, *IMAGE).clamp(0, 1)

    images, labels = toy_images(20, np.random.Generator(np.random.PCG64(9)))
    test = torch.from_numpy(images).float()[:, None]
    patterns = torch.stack([test[torch.from_numpy(labels == c)].mean(0).flatten() for c in range(4)])
    prototypes, deviation = ClassTable(torch.arange(4), patterns), torch.full((WIDTH,), 0.15)
    for freeze in (False, True):
        at = client([0] * 20 + [1] * 20)
        at.fit(epochs=5)
        samples = generate(Painter(), prototypes, deviation, classes=4, per_class=40, generator=stream("made"))
        before, weights = accuracy(at, test, labels), weights_of(at.model)
        settings = TrainSettings(epochs=5, lr=0.05)
        fine_tune(at.model, samples, settings, stream(), local=at.train, local_share=0.25, freeze_norms=freeze)
        assert before <= 0.5 < 0.8 < accuracy(at, test, labels)
        unchanged = [torch.equal(weights[n], t) for n, t in at.model.state_dict().items() if "running" in n]
        assert unchanged and all(unchanged) == freeze


def accuracy(at: Client, x: Tensor, labels: Any) -> float:
    at.model.eval()
    with torch.no_grad():
        return float((at.model(x).argmax(1) == torch.from_numpy(labels)).float().mean())


@pytest.mark.parametrize("preset", ["fedvtc-digits", "fedvtc-fashion-mnist"])
def test_presets_have_features_that_fit_the_decoder(preset: str) -> None:
    config = parse(loading.read_source(preset))
    assert isinstance(catalogue.make(config.method), FedVTC)
    shape = IMAGE if "digits" in preset else (1, 28, 28)
    assert config.models.feature_map is not None
    channels, height, width = config.models.feature_map
    assert latent_map(channels * height * width, shape) == (channels, height, width)


def test_a_subset_of_synthetic_samples_has_the_same_images() -> None:
    with rng.seeded("decoder"):
        decoder = transposed_decoder(WIDTH, IMAGE)
    prototypes = ClassTable(torch.arange(4), torch.zeros(4, WIDTH))
    samples = generate(decoder, prototypes, torch.ones(WIDTH), classes=4, per_class=3, generator=stream())
    indices = torch.tensor([5, 2])
    images, labels = next(iter(samples.subset(indices).batches(8)))
    assert torch.equal(labels, samples.labels[indices])
    assert torch.allclose(images, samples.render(indices), atol=1e-6)


def test_noise_is_kept_for_later_passes_unless_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = ClassTable(torch.arange(4), torch.zeros(4, WIDTH))
    samples = generate(nn.Identity(), prototypes, torch.ones(WIDTH), classes=4, per_class=3, generator=stream())
    indices = torch.tensor([5, 2, 11])
    first = samples.latents(indices)
    assert len(samples.drawn) == 3 and torch.equal(samples.latents(indices.flip(0)), first.flip(0))
    monkeypatch.setattr(synthetic_samples, "MAX_NOISE_BYTES", 12 * WIDTH * 4 - 1)
    again = samples.subset(torch.arange(12))
    assert torch.equal(again.latents(indices), first) and not again.drawn
