"""FedVTC: losses by hand, alternating training, prototypes and standard deviations, synthetic samples, and bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, distributions, nn

from polyfed import catalogue, testing
from polyfed.benchmarks.memory import peak_allocated
from polyfed.config import parse, sources
from polyfed.core import ClassTable, Client, rng
from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import Bound as MeansBound
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client import weights_of
from polyfed.core.codec import encode, read_header
from polyfed.core.payload import Payload, Value
from polyfed.core.profile import Profile, layout
from polyfed.core.schema import TreeField, check_header
from polyfed.errors import InputError, PayloadError
from polyfed.methods.fedvtc.alternating_training import train_decoder, train_model
from polyfed.methods.fedvtc.decoder import build_decoder
from polyfed.methods.fedvtc.figures import IMAGES_PER_CLASS
from polyfed.methods.fedvtc.fine_tuning import fine_tune
from polyfed.methods.fedvtc.method import FedVTC
from polyfed.methods.fedvtc.synthetic_samples import generate
from polyfed.methods.fedvtc.variational_bound import (
    MAX_DEVIATION,
    MIN_DEVIATION,
    StandardDeviation,
    VariationalBound,
    kl_divergence,
    reparameterise,
    sum_of_class_means,
)
from polyfed.models import ModelSpec, build
from polyfed.models.decoders import latent_map, transposed_decoder
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation, toy_images
from polyfed.training import Samples, TrainSettings

FAST: dict[str, Any] = {"samples_per_class": 6, "finetune_epochs": 1}
IMAGE = (1, 8, 8)
WIDTH = 64


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def client(labels: list[int], model: str = "tiny-resnet", name: str = "0", **train: Any) -> Client:
    """Build a client with images of the toy federation."""
    images, known = toy_images(max(labels.count(c) for c in range(4)), np.random.Generator(np.random.PCG64(3)))
    at = [int(np.flatnonzero(known == c)[labels[:k].count(c)]) for k, c in enumerate(labels)]
    pixels = torch.from_numpy((images[at] * 255).astype(np.uint8))[:, None]
    samples = Samples(pixels, torch.tensor(labels, dtype=torch.int64))
    with rng.seeded("model", model):
        split = build(ModelSpec(model), shape=IMAGE, classes=4)
    profile = Profile(
        name, model, layout(split), layout(split.head), split.feature_dim, 4, len(labels), model, image=IMAGE
    )
    return Client(
        profile,
        split,
        samples,
        samples,
        TrainSettings(**{"batch_size": 8, "lr": 0.05, **train}),
        round=1,
        step="train",
    )


def bound_of(method: FedVTC, at: Client, prototypes: Tensor | None = None) -> VariationalBound:
    values = torch.randn(4, WIDTH, generator=stream("centres")) if prototypes is None else prototypes
    table = ClassTable(torch.arange(4), values)
    return method.variational_bound(at, Payload({"prototypes": table, "deviation": torch.full((WIDTH,), 0.7)}))


# the variational bound and its noise


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 40), batch=st.integers(1, 5), scale=st.floats(0.05, 4.0))
def test_kl_divergence_matches_torch_distributions(width: int, batch: int, scale: float) -> None:
    draw = stream(f"{width} {batch}")
    z, c = (torch.randn(batch, width, generator=draw, dtype=torch.float64) for _ in range(2))
    sigma = scale * (0.2 + torch.rand(width, generator=draw, dtype=torch.float64))
    ours = kl_divergence((z - c).square().sum(1), sigma)
    normals = distributions.Normal(z, sigma.expand_as(z)), distributions.Normal(c, torch.ones_like(c))
    expected = distributions.kl_divergence(*normals).sum(1)
    assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-9)
    assert bool((ours > 0).all())
    exact = kl_divergence(torch.zeros(batch, dtype=torch.float64), torch.ones(width, dtype=torch.float64))
    assert bool((exact == 0).all())  # z = c and sigma = 1


def test_gradients_of_the_kl_divergence() -> None:
    z = torch.tensor([[0.5, -2.0, 3.0]], requires_grad=True)
    c, sigma = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([0.5, 1.0, 4.0], requires_grad=True)
    kl_divergence((z - c).square().sum(1), sigma).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and sigma.grad is not None
    assert torch.allclose(z.grad, torch.tensor([[-0.5, -3.0, 2.0]]))  # z - c
    assert torch.allclose(sigma.grad, torch.tensor([-1.5, 0.0, 3.75]))  # sigma - 1 / sigma


def test_reparameterised_samples_have_the_right_moments_and_gradients() -> None:
    z, sigma = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0], requires_grad=True)
    v = reparameterise(z.expand(40000, 2), sigma, stream())
    assert torch.allclose(v.mean(0), z, atol=0.06)
    assert torch.allclose(v.std(0), sigma, rtol=0.02)
    few = reparameterise(z.expand(3, 2), sigma, stream("few"))
    eps = torch.randn(3, 2, generator=stream("few"))
    few.square().sum().backward()  # type: ignore[no-untyped-call]
    assert sigma.grad is not None
    assert torch.allclose(sigma.grad, (eps * 2 * few.detach()).sum(0), rtol=1e-5)  # eps dL/dv


# the decoder


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


# alternating training


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model", ["tiny-resnet", "tiny-cnn"])
def test_each_pass_leaves_the_frozen_part_unchanged(model: str, recompute: bool) -> None:
    method = FedVTC(recompute=recompute)
    at = client([0] * 9 + [1] * 8, model)
    bound = bound_of(method, at)
    decoder, sigma, f = weights_of(bound.decoder), weights_of(bound.deviation), weights_of(at.model)
    train_model(at, bound, 0)
    assert equal(weights_of(bound.decoder), decoder) and equal(weights_of(bound.deviation), sigma)
    trained = weights_of(at.model)
    assert not any(torch.equal(trained[n], f[n]) for n, p in at.model.named_parameters() if p.ndim > 1)
    assert all(p.grad is None for p in (*bound.decoder.parameters(), *bound.deviation.parameters()))
    train_decoder(at, bound, 0)
    assert equal(weights_of(at.model), trained)
    assert all(p.grad is None for p in at.model.parameters())
    after = weights_of(bound.decoder)
    assert not torch.equal(weights_of(bound.deviation)["log"], sigma["log"])
    weights = [name for name, p in bound.decoder.named_parameters() if p.ndim > 1]
    assert len(weights) == 4 and not any(torch.equal(after[name], decoder[name]) for name in weights)


def test_batchnorm_statistics_come_from_real_images_only() -> None:
    # With a learning rate of nearly 0 the weights stay, so the statistics must equal those of plain training.
    ours, plain = client([0] * 8 + [1] * 8, lr=1e-30), client([0] * 8 + [1] * 8, lr=1e-30)
    train_model(ours, bound_of(FedVTC(), ours), 0)
    plain.fit(purpose="model 0")
    statistics = {name: tensor for name, tensor in weights_of(plain.model).items() if "running" in name}
    assert statistics
    for name, tensor in statistics.items():
        assert torch.equal(weights_of(ours.model)[name], tensor), name
    counters = [t for name, t in weights_of(ours.model).items() if name.endswith("num_batches_tracked")]
    assert counters and all(int(t) == 2 for t in counters)


def test_activation_checkpointing_does_not_change_results() -> None:
    results = []
    for recompute in (False, True):
        at = client([0] * 9 + [1] * 8 + [2])
        sent: dict[str, Value] = {
            "prototypes": ClassTable.empty(WIDTH).without_counts(),
            "deviation": torch.ones(WIDTH),
        }
        FedVTC(recompute=recompute).train(at, Payload(sent))
        results.append({**weights_of(at.model), **at.memory.weights("decoder")})
    assert equal(*results)


# averages over clients


def test_prototypes_are_class_means_in_evaluation_mode() -> None:
    at = client([0] * 5 + [2] * 7)
    sent: dict[str, Value] = {"prototypes": ClassTable.empty(WIDTH).without_counts(), "deviation": torch.ones(WIDTH)}
    reply = Payload(FedVTC().train(at, Payload(sent)))
    table = reply.table("prototypes")
    assert table.classes.tolist() == [0, 2] and table.counts is None
    at.model.eval()
    with torch.no_grad():
        z = at.model.features(at.train.images.float() / 255)
    assert torch.allclose(table.values[0], z[:5].mean(0), atol=1e-5)
    assert torch.allclose(table.values[1], z[5:].mean(0), atol=1e-5)
    few = Payload(FedVTC(min_class_count=6).train(client([0] * 5 + [2] * 7), Payload(sent)))
    assert few.table("prototypes").classes.tolist() == [2]


def test_classes_without_uploads_keep_their_prototype() -> None:
    known = ClassTable.of({0: torch.tensor([9.0]), 3: torch.tensor([5.0])}, 1)
    uploads = [ClassTable.of({0: torch.tensor([1.0])}, 1), ClassTable.of({0: torch.tensor([3.0])}, 1)]
    after = known.updated(mean_over_clients(uploads, width=1))
    assert after.classes.tolist() == [0, 3] and after.values.flatten().tolist() == [2.0, 5.0]


@settings(max_examples=25, deadline=None)
@given(start=st.floats(1e-6, 50), slope=st.floats(-1e6, 1e6), rate=st.floats(1e-3, 100))
def test_deviations_stay_positive_under_any_gradient(start: float, slope: float, rate: float) -> None:
    deviation = StandardDeviation(torch.tensor([start, 1.0]))
    optimizer = torch.optim.SGD(deviation.parameters(), lr=rate)
    for _ in range(4):
        optimizer.zero_grad()
        (slope * deviation()).sum().backward()
        optimizer.step()
    sigma = deviation().detach()
    assert bool((sigma >= 0.999 * MIN_DEVIATION).all()) and bool((sigma <= 1.001 * MAX_DEVIATION).all())


def test_uploaded_negative_deviations_count_as_0_in_the_mean() -> None:
    @dataclasses.dataclass(frozen=True)
    class Hostile(FedVTC):
        def train(self, client: Client, msg: Payload) -> Any:
            reply = dict(super().train(client, msg) or {})
            sign = -1.0 if int(client.name) % 2 else 1.0
            return {**reply, "deviation": torch.full((WIDTH,), 0.3 * sign)}

    vars(Hostile.train)["messages"] = vars(FedVTC.train)["messages"]
    with ToyFederation(FedVTC, FAST) as toy:
        outcome = toy.run(toy.config(CLASS_COUNTS[:2]), method=Hostile(**FAST)).checked()
    sigma = outcome.server["deviation"]
    # by hand: (0.3 + 0) / 2
    assert isinstance(sigma, Tensor) and torch.allclose(sigma, torch.full((WIDTH,), 0.15), atol=1e-6)


def test_the_mean_of_decoders_does_not_depend_on_their_order() -> None:
    at = client([0, 1]).profile
    decoders = []
    for seed in range(3):
        with rng.seeded(seed):
            decoders.append(weights_of(transposed_decoder(WIDTH, at.image)))

    def mean(order: list[int]) -> dict[str, Tensor]:
        total = WeightedMean()
        for k in order:
            total.add(decoders[k], 1.0)
        return total.result({})

    same = mean([1, 1, 1])
    assert all(torch.allclose(same[name], decoders[1][name].to(same[name].dtype)) for name in same)
    one, other = mean([0, 1, 2]), mean([2, 0, 1])
    assert all(torch.allclose(one[name], other[name]) for name in one)
    initial = [weights_of(build_decoder(None, 5, profile, "batch")) for profile in (at, client([3]).profile)]
    assert equal(*initial)


# synthetic samples


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


# L_tc


def small_bound(method: FedVTC, labels: list[int]) -> tuple[VariationalBound, Tensor, Tensor]:
    """Return L_tc, images and labels for images of two pixels and features of two numbers."""
    at = client(labels)
    bound = bound_of(method, at, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    return bound, torch.zeros(len(labels), 1, 1, 2), torch.tensor(labels)


def test_the_loss_by_hand() -> None:
    # sigma = (1, e): spread = (1 + e^2) - 2 - 2 = e^2 - 3. Prototypes: class 0 (0, 0), class 1 (1, 1).
    # Class 0: z = (1, 0), x' - x = (.5, .5), z' = (0, 2): |x'-x|^2 = .5, KL = (1 + e^2 - 3) / 2, |z'-c|^2 = 4.
    # Class 1: two samples with z = c; the first x' = x, the second x' - x = (1, 0); z' = (1, 1) = c.
    sigma = torch.tensor([1.0, float(np.e)])
    spread = float(np.e**2) - 3
    z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    decoded = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, 0.0]]).reshape(3, 1, 1, 2)
    re_encoded = torch.tensor([[0.0, 2.0], [1.0, 1.0], [1.0, 1.0]])

    def total(**fields: Any) -> float:
        bound, x, y = small_bound(FedVTC(**fields), [0, 1, 1])
        return float(bound.loss(x, y, z, sigma, decoded, re_encoded))

    l_e, l_dm = (0.5 + 0.5) + (1 + spread) / 2 + spread / 2, 4.0  # sums of two class means
    assert total(reduction="sum") == pytest.approx(l_e + 0.1 * l_dm, rel=1e-5)
    assert total(reduction="mean_pixels") == pytest.approx((l_e + 0.1 * l_dm) / 2, rel=1e-5)
    assert total(reduction="mean_each") == pytest.approx((l_e + 0.1 * l_dm) / 2, rel=1e-5)
    assert total(reduction="sum", matching=0.0) == pytest.approx(l_e, rel=1e-5)


def test_the_matching_loss_is_0_only_at_the_prototype() -> None:
    bound, x, y = small_bound(FedVTC(reduction="sum", matching=1.0), [0, 1])
    z = sigma = torch.ones(2)
    at_prototype = bound.prototypes[y]
    assert float(bound.loss(x, y, at_prototype, sigma, x, at_prototype)) == 0.0
    off = at_prototype + torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    assert float(bound.loss(x, y, at_prototype, z, x, off)) == pytest.approx(0.25)


def test_skip_unknown_leaves_classes_without_prototype_alone() -> None:
    at = client([0, 1])
    sigma = torch.ones(2)
    z = torch.full((2, 2), 3.0)
    x = torch.zeros(2, 1, 1, 2)
    losses = {}
    for skip in (False, True):
        method = FedVTC(reduction="sum", matching=1.0, skip_unknown=skip)
        table = ClassTable.of({0: torch.zeros(2)}, 2)
        bound = method.variational_bound(at, Payload({"prototypes": table, "deviation": sigma}))
        losses[skip] = float(bound.loss(x, torch.tensor([0, 1]), z, sigma, x, z))
    # KL = |3, 3|^2 / 2 = 9 and L_dm = 18 per class; both classes, or the known one alone
    assert losses == {False: 54.0, True: 27.0}


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=2, max_size=10), times=st.integers(2, 4))
def test_duplicating_the_samples_of_a_class_does_not_change_the_loss(labels: list[int], times: int) -> None:
    values = torch.rand(len(labels), generator=stream("values"), dtype=torch.float64)
    y = torch.tensor(labels)
    duplicated = torch.cat([torch.arange(len(y)), (y == y[0]).nonzero()[:, 0].repeat(times - 1)])
    assert torch.allclose(sum_of_class_means(values[duplicated], y[duplicated]), sum_of_class_means(values, y))
    expected = sum(values[y == c].mean() for c in set(labels))
    assert torch.allclose(sum_of_class_means(values, y), torch.as_tensor(expected))


# bytes


def decoder_bytes() -> int:
    weights = weights_of(build_decoder(None, 0, client([0]).profile, "batch"))
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


@pytest.mark.parametrize("vtc", ["once", "regular"])
def test_bytes_match_the_formula(vtc: str) -> None:
    with ToyFederation(FedVTC, {**FAST, "vtc": vtc}) as toy:
        outcome = toy.run().checked()
    held = sum(sum(count > 0 for count in share) for share in CLASS_COUNTS)  # sum over clients of |Y_k|
    clients, decoder, row = len(CLASS_COUNTS), decoder_bytes(), 4 * WIDTH
    first, last = outcome.round_stats
    assert (
        first.up["prototypes"] == pytest.approx(row * held, abs=8 * held) and first.up["deviation"] == clients * row
    )
    # there are no prototypes before round 1, and zeros are not sent
    assert first.down["deviation"] == clients * row and first.down["prototypes"] < row
    rounds = 2 if vtc == "regular" else 1
    total = {
        kind: sum(getattr(stats, kind).get("decoder", 0) for stats in outcome.round_stats) for kind in ("up", "down")
    }
    assert total == {"up": rounds * clients * decoder, "down": (rounds + (vtc == "regular")) * clients * decoder}
    # last round: each client receives prototypes of its own classes, then of all four; fine-tuning uploads nothing
    assert last.down["prototypes"] == pytest.approx(row * (held + 4 * clients), abs=8 * (held + 4 * clients))
    assert last.up["prototypes"] == first.up["prototypes"]


def test_decoders_of_another_shape_are_rejected() -> None:
    profile = client([0]).profile
    field = {"decoder": TreeField(layout=vars(FedVTC.upload_decoder)["messages"].up["decoder"].layout)}
    right = weights_of(build_decoder(None, 0, profile, "batch"))
    check_header(read_header(encode({"decoder": right}).data), field, FedVTC(), profile)
    wrong = {**right, "layers.1.weight": torch.zeros(3, 3)}
    with pytest.raises(PayloadError, match=r"'layers\.1\.weight' of shape \(3, 3\)"):
        check_header(read_header(encode({"decoder": wrong}).data), field, FedVTC(), profile)


# memory


def test_alternating_training_needs_less_memory_than_joint_training() -> None:
    at = client([0] * 8 + [1] * 8, "tiny-resnet", batch_size=16)
    bound = bound_of(FedVTC(), at)
    x, y = next(iter(at.train.batches(16)))
    at.model.train()

    def joint() -> None:
        z, sigma = at.model.features(x), bound.deviation()
        decoded = bound.decoder(reparameterise(z, sigma, stream()))
        loss = bound.loss(x, y, z, sigma, decoded, at.model.features(decoded))
        (F.cross_entropy(at.model.head(z), y) + loss).backward()  # type: ignore[no-untyped-call]

    def alternating() -> None:
        train_model(at, bound, 0)
        train_decoder(at, bound, 0)

    peaks = {work.__name__: peak_allocated(work) for work in (joint, alternating)}
    assert 0 < peaks["alternating"] < peaks["joint"]


# runs


@pytest.mark.parametrize(
    "fields",
    [
        {"vtc": "regular", "decoder_norm": "group", "skip_unknown": True, "min_class_count": 4},
        {"recompute": False, "finetune_norms": "frozen", "real_share": 0.5, "matching": 0.0},
    ],
)
@pytest.mark.parametrize(
    "check", ["order_of_clients_is_irrelevant", "client_with_one_sample", "little_memory_changes_nothing"]
)
def test_options_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, FedVTC, {**FAST, **fields})


def test_a_run_saves_synthetic_images_and_evaluates_models_before_fine_tuning() -> None:
    with ToyFederation(FedVTC, {**FAST, "vtc": "regular"}) as toy:
        folder = toy.new_folder()
        result = toy.experiment(toy.settings(), folder)
        artifacts = sorted(path.name for path in (folder / "artifacts").iterdir())
        tensors = load_file(folder / "artifacts" / artifacts[-1])
    assert artifacts == ["synthetic-000001.safetensors", "synthetic-000002.safetensors"]  # by round
    assert tensors["images"].shape == (4 * IMAGES_PER_CLASS, *IMAGE) and 0 <= tensors["images"].min() <= 1
    assert torch.bincount(tensors["labels"]).tolist() == [IMAGES_PER_CLASS] * 4
    for kind in ("personal", "global"):
        before = result["accuracy"][kind]["also"]["untuned"]["by_round"]
        assert before[0] == result["accuracy"][kind]["by_round"][0]  # nothing is tuned before the last round
        assert 0 <= before[-1] <= 1


def test_untuned_models_are_the_models_after_training() -> None:
    with ToyFederation(FedVTC, FAST) as toy:
        outcome = toy.run().checked()
        without_copy = toy.run(method=FedVTC(**FAST, keep_untuned=False)).checked()
        ended = outcome.client("0")
        state = ended["state"]
        assert isinstance(state, dict) and isinstance(state["untuned"], dict)
        assert not equal(state["untuned"], ended.weights("model"))
        assert equal(without_copy.client("0").weights("model"), ended.weights("model"))
        assert "untuned" not in without_copy.client("0")["state"]  # type: ignore[operator]
    at = client([0, 1, 2, 3])
    x = at.train.images.float() / 255
    at.model.eval()
    method, logits = FedVTC(), at.model(x)
    assert torch.equal(method.predict_untuned(at, x), logits)
    at.state["untuned"] = weights_of(at.model)
    with torch.no_grad():
        at.model.head.bias.add_(1.0)  # type: ignore[operator]
    assert torch.equal(method.predict_untuned(at, x), logits)
    assert not torch.equal(method.predict(at, x), logits)


def test_decoders_that_were_never_trained_are_left_out_of_the_mean() -> None:
    with ToyFederation(FedVTC, FAST) as toy:
        outcome = toy.run(toy.config(CLASS_COUNTS[:3]), selected=lambda number: ("0", "1")).checked()
        states = [outcome.client(k)["state"] for k in "01"]
    mean = outcome.server["decoder"]
    trained = [state["decoder"] for state in states if isinstance(state, dict)]
    assert isinstance(mean, dict) and len(trained) == 2
    name = "layers.1.weight"
    assert torch.allclose(mean[name], (trained[0][name] + trained[1][name]) / 2, atol=1e-6)
    assert sum(stats.up.get("decoder", 0) for stats in outcome.round_stats) == 2 * decoder_bytes()


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples_per_class": 0}, "samples_per_class is 0; expected a number of at least 1"),
        ({"finetune_epochs": 0}, "finetune_epochs is 0; expected a number of at least 1"),
        ({"matching": -1.0}, "matching is -1.0; expected a number of at least 0"),
        ({"real_share": -0.5}, "real_share is -0.5; expected a number of at least 0"),
    ],
)
def test_wrong_options_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        catalogue.make({"name": "fedvtc", **fields})


@pytest.mark.parametrize("preset", ["fedvtc-digits", "fedvtc-fashion-mnist"])
def test_presets_have_features_that_fit_the_decoder(preset: str) -> None:
    config = parse(sources.read_source(preset))
    assert isinstance(catalogue.make(config.method), FedVTC)
    shape = IMAGE if "digits" in preset else (1, 28, 28)
    assert config.models.feature_map is not None
    channels, height, width = config.models.feature_map
    assert latent_map(channels * height * width, shape) == (channels, height, width)


# privacy


def test_classes_below_min_count_are_not_pulled_to_0() -> None:
    """Such a class is not sent, so it never gets a prototype. Other classes are treated as without privacy."""
    at = client([0] * 4 + [1] * 2)
    known = ClassTable.of({0: torch.ones(WIDTH)}, WIDTH).without_counts()
    msg = Payload({"prototypes": known, "deviation": torch.ones(WIDTH)})
    assert FedVTC(**FAST).variational_bound(at, msg).regularised.tolist() == [True] * 4
    at.bound = MeansBound(1.0, 3)
    assert FedVTC(**FAST).variational_bound(at, msg).regularised.tolist() == [True, False, False, False]
    assert FedVTC(**FAST, skip_unknown=True).variational_bound(at, msg).regularised.tolist() == [
        True,
        False,
        False,
        False,
    ]
    first = Payload({"prototypes": ClassTable.empty(WIDTH).without_counts(), "deviation": torch.ones(WIDTH)})
    assert FedVTC(**FAST).variational_bound(at, first).regularised.tolist() == [True, False, False, False]


def test_a_run_with_privacy_for_all_fields() -> None:
    noise: dict[str, Any] = {
        "prototypes": {"clip": 1.0, "noise": 0.1, "min_count": 3},
        "deviation": {"clip": 10.0, "noise": 0.1},
        "decoder": {"clip": 10.0, "epsilon": 100.0, "releases": 1},
    }
    with ToyFederation(FedVTC, FAST) as toy:
        folder = toy.new_folder()
        result = toy.experiment(
            toy.settings([[6, 2, 0, 0], [0, 6, 6, 0]], privacy=noise, evaluate={"record_uploads": [0]}), folder
        )
    assert result["failures"] == []
    privacy = result["privacy"]
    assert {name: facts["unit"] for name, facts in privacy["fields"].items()} == {
        "prototypes": "row",
        "deviation": "message",
        "decoder": "message",
    }
    assert privacy["clients"]["0"]["releases"] == {"prototypes": 2, "deviation": 2, "decoder": 1}
    assert privacy["fields"]["decoder"]["planned_releases"] == 1


@pytest.mark.parametrize(("steps", "expected"), [(3, 3), (None, 8)])
def test_model_and_decoder_take_equally_many_steps(steps: int | None, expected: int) -> None:
    at = client([0, 1] * 16, steps=steps, epochs=2)  # four batches
    message: dict[str, Value] = {
        "prototypes": ClassTable.empty(WIDTH).without_counts(),
        "deviation": torch.ones(WIDTH),
    }
    FedVTC(**FAST).train(at, Payload(message))
    assert sum(fit.steps for fit in at.fits if not fit.aside) == expected
    assert sum(fit.steps for fit in at.fits if fit.aside) == expected


def test_a_subset_of_synthetic_samples_has_the_same_images() -> None:
    with rng.seeded("decoder"):
        decoder = transposed_decoder(WIDTH, IMAGE)
    prototypes = ClassTable(torch.arange(4), torch.zeros(4, WIDTH))
    samples = generate(decoder, prototypes, torch.ones(WIDTH), classes=4, per_class=3, generator=stream())
    indices = torch.tensor([5, 2])
    images, labels = next(iter(samples.subset(indices).batches(8)))
    assert torch.equal(labels, samples.labels[indices])
    assert torch.allclose(images, samples.render(indices), atol=1e-6)
