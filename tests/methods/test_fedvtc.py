"""FedVTC: its losses by hand, what each pass may change, prototypes and deviations, synthetic samples, and bytes."""

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
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

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
from polyfed.methods.fedvtc.method import SHOWN, FedVTC
from polyfed.methods.fedvtc.synthetic_samples import fine_tune, generated
from polyfed.methods.fedvtc.variational import (
    LARGEST,
    SMALLEST,
    Bound,
    Deviation,
    divergence,
    reparameterised,
    sum_of_class_means,
)
from polyfed.models import ModelSpec, build
from polyfed.models.decoders import CHANNELS, latent_map, transposed_decoder
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation, pictures
from polyfed.training import Samples, TrainSettings

FAST: dict[str, Any] = {"samples_per_class": 6, "finetune_epochs": 1}
IMAGE = (1, 8, 8)
WIDTH = 64


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def client(labels: list[int], model: str = "tiny-resnet", name: str = "0", **train: Any) -> Client:
    """A client of the toy federation's pictures, made by hand."""
    images, known = pictures(max(labels.count(c) for c in range(4)), np.random.Generator(np.random.PCG64(3)))
    at = [int(np.flatnonzero(known == c)[labels[:k].count(c)]) for k, c in enumerate(labels)]
    pixels = torch.from_numpy((images[at] * 255).astype(np.uint8))[:, None]
    samples = Samples(pixels, torch.tensor(labels, dtype=torch.int64))
    with rng.seeded("model", model):
        made = build(ModelSpec(model), shape=IMAGE, classes=4)
    profile = Profile(
        name, model, layout(made), layout(made.head), made.feature_dim, 4, len(labels), model, image=IMAGE
    )
    return Client(
        profile,
        made,
        samples,
        samples,
        TrainSettings(**{"batch_size": 8, "lr": 0.05, **train}),
        round=1,
        step="train",
    )


def bound_of(method: FedVTC, at: Client, prototypes: Tensor | None = None) -> Bound:
    centres = torch.randn(4, WIDTH, generator=stream("centres")) if prototypes is None else prototypes
    table = ClassTable(torch.arange(4), centres)
    return method.bound(at, Payload({"prototypes": table, "deviation": torch.full((WIDTH,), 0.7)}))


# 1, 2, 3: the bound and its noise


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 40), batch=st.integers(1, 5), scale=st.floats(0.05, 4.0))
def test_divergence_is_that_of_torch(width: int, batch: int, scale: float) -> None:
    draw = stream(f"{width} {batch}")
    z, c = (torch.randn(batch, width, generator=draw, dtype=torch.float64) for _ in range(2))
    sigma = scale * (0.2 + torch.rand(width, generator=draw, dtype=torch.float64))
    ours = divergence((z - c).square().sum(1), sigma)
    theirs = kl_divergence(Normal(z, sigma.expand_as(z)), Normal(c, torch.ones_like(c))).sum(1)
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert bool((ours > 0).all())
    exact = divergence(torch.zeros(batch, dtype=torch.float64), torch.ones(width, dtype=torch.float64))
    assert bool((exact == 0).all())  # z = c and sigma = 1


def test_gradients_of_the_divergence() -> None:
    z = torch.tensor([[0.5, -2.0, 3.0]], requires_grad=True)
    c, sigma = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([0.5, 1.0, 4.0], requires_grad=True)
    divergence((z - c).square().sum(1), sigma).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and sigma.grad is not None
    assert torch.allclose(z.grad, torch.tensor([[-0.5, -3.0, 2.0]]))  # z - c
    assert torch.allclose(sigma.grad, torch.tensor([-1.5, 0.0, 3.75]))  # sigma - 1 / sigma


def test_draws_have_their_mean_and_deviation_and_pass_gradients_on() -> None:
    z, sigma = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0], requires_grad=True)
    v = reparameterised(z.expand(40000, 2), sigma, stream())
    assert torch.allclose(v.mean(0), z, atol=0.06)
    assert torch.allclose(v.std(0), sigma, rtol=0.02)
    again = reparameterised(z.expand(3, 2), sigma, stream("few"))
    eps = torch.randn(3, 2, generator=stream("few"))
    again.square().sum().backward()  # type: ignore[no-untyped-call]
    assert sigma.grad is not None
    assert torch.allclose(sigma.grad, (eps * 2 * again.detach()).sum(0), rtol=1e-5)  # eps dL/dv


# 4: the decoder


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
def test_decoders_of_the_papers_table(
    image: tuple[int, int, int], features: int, parameters: int | None, start: tuple[int, int, int]
) -> None:
    assert latent_map(features, image) == start
    with rng.seeded("decoder"):
        decoder = transposed_decoder(features, image)
    made = decoder(5 * torch.randn(2, features, generator=stream()))
    assert made.shape == (2, *image)
    assert 0 <= made.min().item() < made.max().item() <= 1
    if parameters is not None:
        assert sum(p.numel() for p in decoder.parameters()) == parameters
    with rng.seeded("decoder"):
        grouped = transposed_decoder(features, image, norm="group")
    assert not any(isinstance(part, nn.BatchNorm2d) for part in grouped.modules())
    assert grouped(torch.zeros(1, features)).shape == (1, *image)


def test_sizes_can_be_chosen_and_what_does_not_fit_is_refused() -> None:
    def first(size: str, image: tuple[int, int, int]) -> int:
        return sum(p.numel() for p in transposed_decoder(64, image, size).parameters())

    assert first("small", IMAGE) == first("auto", IMAGE) < first("medium", IMAGE) < first("large", IMAGE)
    assert CHANNELS.keys() == {"small", "medium", "large"}
    with pytest.raises(InputError, match=r"multiple of 49, but there are 64; set models\.feature_map: \[20, 7, 7\]"):
        latent_map(64, (1, 28, 28))
    with pytest.raises(InputError, match=r"1x30x28; .* divide by 4"):
        latent_map(64, (1, 30, 28))


# 5: what each pass leaves alone


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model", ["tiny-resnet", "tiny-cnn"])
def test_each_pass_leaves_the_other_part_as_it_was(model: str, recompute: bool) -> None:
    method = FedVTC(recompute=recompute)
    at = client([0] * 9 + [1] * 8, model)
    bound = bound_of(method, at)
    decoder, sigma, f = weights_of(bound.decoder), weights_of(bound.deviation), weights_of(at.model)
    method.train_model(at, bound, at.train, 0)
    assert equal(weights_of(bound.decoder), decoder) and equal(weights_of(bound.deviation), sigma)
    trained = weights_of(at.model)
    assert not any(torch.equal(trained[n], f[n]) for n, p in at.model.named_parameters() if p.ndim > 1)
    assert all(p.grad is None for p in (*bound.decoder.parameters(), *bound.deviation.parameters()))
    method.train_decoder(at, bound, at.train, 0)
    assert equal(weights_of(at.model), trained)
    assert all(p.grad is None for p in at.model.parameters())
    after = weights_of(bound.decoder)
    assert not torch.equal(weights_of(bound.deviation)["log"], sigma["log"])
    weights = [name for name, p in bound.decoder.named_parameters() if p.ndim > 1]
    assert len(weights) == 4 and not any(torch.equal(after[name], decoder[name]) for name in weights)


def test_statistics_come_from_real_images_alone() -> None:
    # With no rate the weights stay, so BatchNorm must have seen what it sees in plain training: every batch, once.
    ours, plain = client([0] * 8 + [1] * 8, lr=1e-30), client([0] * 8 + [1] * 8, lr=1e-30)
    FedVTC().train_model(ours, bound_of(FedVTC(), ours), ours.train, 0)
    plain.fit(purpose="model 0")
    statistics = {name: tensor for name, tensor in weights_of(plain.model).items() if "running" in name}
    assert statistics
    for name, tensor in statistics.items():
        assert torch.equal(weights_of(ours.model)[name], tensor), name
    counters = [t for name, t in weights_of(ours.model).items() if name.endswith("num_batches_tracked")]
    assert counters and all(int(t) == 2 for t in counters)


def test_recomputing_changes_no_number() -> None:
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


# 6, 7, 8: what is averaged


def test_prototypes_are_class_means_of_clean_features() -> None:
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


def test_classes_that_nobody_holds_keep_their_prototype() -> None:
    known = ClassTable.of({0: torch.tensor([9.0]), 3: torch.tensor([5.0])}, 1)
    got = [ClassTable.of({0: torch.tensor([1.0])}, 1), ClassTable.of({0: torch.tensor([3.0])}, 1)]
    after = known.updated(mean_over_clients(got, width=1))
    assert after.classes.tolist() == [0, 3] and after.values.flatten().tolist() == [2.0, 5.0]


@settings(max_examples=25, deadline=None)
@given(start=st.floats(1e-6, 50), slope=st.floats(-1e6, 1e6), rate=st.floats(1e-3, 100))
def test_deviations_stay_positive_under_any_gradient(start: float, slope: float, rate: float) -> None:
    deviation = Deviation(torch.tensor([start, 1.0]))
    optimizer = torch.optim.SGD(deviation.parameters(), lr=rate)
    for _ in range(4):
        optimizer.zero_grad()
        (slope * deviation()).sum().backward()
        optimizer.step()
    sigma = deviation().detach()
    assert bool((sigma >= 0.999 * SMALLEST).all()) and bool((sigma <= 1.001 * LARGEST).all())


def test_deviations_stay_positive_when_averaged_and_negative_ones_cannot_break_them() -> None:
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
    # by hand: (0.3 + 0) / 2, since a negative one counts as 0
    assert isinstance(sigma, Tensor) and torch.allclose(sigma, torch.full((WIDTH,), 0.15), atol=1e-6)


def test_equal_decoders_are_their_own_mean_in_any_order() -> None:
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
    method = FedVTC()
    assert equal(weights_of(method.new_decoder(5, at)), weights_of(method.new_decoder(5, client([3]).profile)))


# 9: synthetic samples


@settings(max_examples=20, deadline=None)
@given(each=st.integers(1, 9), size=st.integers(1, 12), drop=st.booleans())
def test_synthetic_samples_are_so_many_of_every_known_class(each: int, size: int, drop: bool) -> None:
    with rng.seeded("decoder"):
        decoder = transposed_decoder(WIDTH, IMAGE)
    table = ClassTable.of({c: torch.full((WIDTH,), float(c)) for c in (1, 2)}, WIDTH)
    made = generated(decoder, table.dense(4)[0], table.classes, torch.full((WIDTH,), 0.1), each, stream("made"))
    assert torch.bincount(made.labels, minlength=4).tolist() == [0, each, each, 0]  # 0 and 3 have no prototype
    walks = [list(made.batches(size, shuffle=stream(walk), drop_single=drop)) for walk in ("one", "one", "two")]
    for walk in walks:
        left = len(made) % size == 1 and drop
        assert sum(len(y) for _, y in walk) == len(made) - left
        assert all(x.shape == (len(y), *IMAGE) and float(x.min()) >= 0 and float(x.max()) <= 1 for x, y in walk)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(walks[0], walks[1], strict=True))
    # in another order the same images: a sample is made of its own seed alone
    if not drop:
        whole = [torch.cat([x for x, _ in walk]).sum((1, 2, 3)).sort().values for walk in walks]
        assert torch.allclose(whole[0], whole[2], atol=1e-4)


def test_latents_are_around_the_prototype() -> None:
    class Latents(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v[:, :, None, None]

    table = ClassTable.of({0: torch.tensor([3.0, -3.0]), 1: torch.tensor([0.0, 10.0])}, 2)
    made = generated(Latents(), table.dense(2)[0], table.classes, torch.tensor([0.5, 2.0]), 4000, stream())
    v = made.made(torch.arange(len(made)))[:, :, 0, 0]
    assert torch.allclose(v[:4000].mean(0), torch.tensor([3.0, -3.0]), atol=0.12)
    assert torch.allclose(v[4000:].mean(0), torch.tensor([0.0, 10.0]), atol=0.12)
    assert torch.allclose(v[:4000].std(0), torch.tensor([0.5, 2.0]), rtol=0.05)


# 10, 12: L_tc


def losses(method: FedVTC, labels: list[int]) -> tuple[Bound, Tensor, Tensor]:
    """Images of two pixels by one and features of two numbers, small enough for a sheet of paper."""
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
    made = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, 0.0]]).reshape(3, 1, 1, 2)
    again = torch.tensor([[0.0, 2.0], [1.0, 1.0], [1.0, 1.0]])

    def total(**fields: Any) -> float:
        bound, x, y = losses(FedVTC(**fields), [0, 1, 1])
        return float(bound.loss(x, y, z, sigma, made, again))

    rebuilt, apart, matched = 0.5 + 0.5, (1 + spread) / 2 + spread / 2, 4.0  # each a sum of two class means
    assert total(reduction="sum") == pytest.approx(rebuilt + apart + 0.1 * matched, rel=1e-5)
    assert total(reduction="mean_pixels") == pytest.approx((rebuilt + apart + 0.1 * matched) / 2, rel=1e-5)
    assert total(reduction="mean_each") == pytest.approx((rebuilt + apart + 0.1 * matched) / 2, rel=1e-5)
    assert total(reduction="sum", matching=0.0) == pytest.approx(rebuilt + apart, rel=1e-5)  # L_e
    # by weights n / |D^y|, 3 and 3/2, mean over the three: the same where the batch is all there is
    assert total(reduction="sum", class_balance="weights") == pytest.approx(rebuilt + apart + 0.1 * matched, rel=1e-5)


def test_matching_is_nothing_only_at_the_prototype() -> None:
    bound, x, y = losses(FedVTC(reduction="sum", matching=1.0), [0, 1])
    z = sigma = torch.ones(2)
    at_prototype = bound.centres[y]
    assert float(bound.loss(x, y, at_prototype, sigma, x, at_prototype)) == 0.0
    off = at_prototype + torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    assert float(bound.loss(x, y, at_prototype, z, x, off)) == pytest.approx(0.25)


def test_unknown_classes_are_not_pulled_where_asked() -> None:
    at = client([0, 1])
    sigma = torch.ones(2)
    z = torch.full((2, 2), 3.0)
    x = torch.zeros(2, 1, 1, 2)
    found = {}
    for skip in (False, True):
        method = FedVTC(reduction="sum", matching=1.0, skip_unknown=skip)
        table = ClassTable.of({0: torch.zeros(2)}, 2)
        bound = method.bound(at, Payload({"prototypes": table, "deviation": sigma}))
        found[skip] = float(bound.loss(x, torch.tensor([0, 1]), z, sigma, x, z))
    # KL = |3, 3|^2 / 2 = 9 and L_dm = 18 per class; both classes, or the known one alone
    assert found == {False: 54.0, True: 27.0}


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=2, max_size=10), times=st.integers(2, 4))
def test_how_often_a_class_comes_does_not_matter(labels: list[int], times: int) -> None:
    values = torch.rand(len(labels), generator=stream("values"), dtype=torch.float64)
    y = torch.tensor(labels)
    again = torch.cat([torch.arange(len(y)), (y == y[0]).nonzero()[:, 0].repeat(times - 1)])
    assert torch.allclose(sum_of_class_means(values[again], y[again]), sum_of_class_means(values, y))
    expected = sum(values[y == c].mean() for c in set(labels))
    assert torch.allclose(sum_of_class_means(values, y), torch.as_tensor(expected))
    # over all batches of one sample, weights by counts have the same mean
    counts = torch.bincount(y, minlength=4)
    ones = [sum_of_class_means(values[k : k + 1], y[k : k + 1], counts) for k in range(len(y))]
    assert torch.allclose(torch.stack(ones).mean(), torch.as_tensor(expected))


# 11: bytes


def decoder_bytes() -> int:
    weights = weights_of(FedVTC().new_decoder(0, client([0]).profile))
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


@pytest.mark.parametrize("vtc", ["once", "regular"])
def test_bytes_are_those_of_the_formula(vtc: str) -> None:
    with ToyFederation(FedVTC, {**FAST, "vtc": vtc}) as toy:
        outcome = toy.run().checked()
    held = sum(sum(count > 0 for count in share) for share in CLASS_COUNTS)  # sum over clients of |Y_k|
    clients, decoder, row = len(CLASS_COUNTS), decoder_bytes(), 4 * WIDTH
    first, last = outcome.round_stats
    assert (
        first.up["prototypes"] == pytest.approx(row * held, abs=8 * held) and first.up["deviation"] == clients * row
    )
    # nobody has a prototype before round 1, and 0 need not be sent
    assert first.down["deviation"] == clients * row and first.down["prototypes"] < row
    rounds = 2 if vtc == "regular" else 1
    total = {
        kind: sum(getattr(stats, kind).get("decoder", 0) for stats in outcome.round_stats) for kind in ("up", "down")
    }
    assert total == {"up": rounds * clients * decoder, "down": (rounds + (vtc == "regular")) * clients * decoder}
    # last round: prototypes of its own classes to each, then those of all four to all; fine-tuning sends nothing up
    assert last.down["prototypes"] == pytest.approx(row * (held + 4 * clients), abs=8 * (held + 4 * clients))
    assert last.up["prototypes"] == first.up["prototypes"]


def test_foreign_decoders_are_refused_by_name() -> None:
    profile = client([0]).profile
    field = {"decoder": TreeField(layout=vars(FedVTC.give_decoder)["messages"].up["decoder"].layout)}
    right = weights_of(FedVTC().new_decoder(0, profile))
    check_header(read_header(encode({"decoder": right}).data), field, FedVTC(), profile)
    wrong = {**right, "layers.1.weight": torch.zeros(3, 3)}
    with pytest.raises(PayloadError, match=r"'layers\.1\.weight' of shape \(3, 3\)"):
        check_header(read_header(encode({"decoder": wrong}).data), field, FedVTC(), profile)


# 13: memory


def test_taking_turns_holds_less_than_training_both_at_once() -> None:
    at = client([0] * 8 + [1] * 8, "tiny-resnet", batch_size=16)
    method = FedVTC()
    bound = bound_of(method, at)
    x, y = next(iter(at.train.batches(16)))
    at.model.train()

    def together() -> None:
        z, sigma = at.model.features(x), bound.deviation()
        made = bound.decoder(reparameterised(z, sigma, stream()))
        loss = bound.loss(x, y, z, sigma, made, at.model.features(made))
        (F.cross_entropy(at.model.head(z), y) + loss).backward()  # type: ignore[no-untyped-call]

    def in_turns() -> None:
        method.train_model(at, bound, at.train, 0)
        method.train_decoder(at, bound, at.train, 0)

    most = {work.__name__: peak_allocated(work) for work in (together, in_turns)}
    assert 0 < most["in_turns"] < most["together"]


# 14 and the whole: seeds and resuming are checks of the battery, which all options that change a step pass too


@pytest.mark.parametrize(
    "fields",
    [
        {"vtc": "regular", "decoder_norm": "group", "class_balance": "weights", "skip_unknown": True},
        {"alternate": "batch", "recompute": False, "finetune_norms": "frozen", "real_share": 0.5, "matching": 0.0},
        {"average_untrained": True, "finetune_full_batch": True, "same_images": True, "min_class_count": 4},
    ],
)
@pytest.mark.parametrize(
    "check", ["order_of_clients_is_irrelevant", "client_with_one_sample", "little_memory_changes_nothing"]
)
def test_options_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, FedVTC, {**FAST, **fields})


def test_a_run_keeps_its_images_and_measures_models_from_before_fine_tuning() -> None:
    with ToyFederation(FedVTC, {**FAST, "vtc": "regular"}) as toy:
        folder = toy.new_folder()
        result = toy.experiment(toy.settings(), folder)
        kept = sorted(path.name for path in (folder / "artifacts").iterdir())
        tensors = load_file(folder / "artifacts" / kept[-1])
    assert kept == ["synthetic-000001.safetensors", "synthetic-000002.safetensors"]  # by round
    assert tensors["images"].shape == (4 * SHOWN, *IMAGE) and 0 <= tensors["images"].min() <= 1
    assert torch.bincount(tensors["labels"]).tolist() == [SHOWN] * 4
    for kind in ("personal", "global"):
        before = result["accuracy"][kind]["also"]["untuned"]["by_round"]
        assert before[0] == result["accuracy"][kind]["by_round"][0]  # nothing is tuned before the last round
        assert 0 <= before[-1] <= 1


def test_models_from_before_are_those_that_training_left() -> None:
    with ToyFederation(FedVTC, FAST) as toy:
        outcome = toy.run().checked()
        forgetful = toy.run(method=FedVTC(**FAST, keep_untuned=False)).checked()
        ended = outcome.client("0")
        state = ended["state"]
        assert isinstance(state, dict) and isinstance(state["untuned"], dict)
        assert not equal(state["untuned"], ended.weights("model"))
        assert equal(forgetful.client("0").weights("model"), ended.weights("model"))
        assert "untuned" not in forgetful.client("0")["state"]  # type: ignore[operator]
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


def test_decoders_that_were_never_trained_do_not_count() -> None:
    found = {}
    for average in (False, True):
        method = FedVTC(**FAST, average_untrained=average)
        with ToyFederation(FedVTC, FAST) as toy:
            outcome = toy.run(
                toy.config(CLASS_COUNTS[:3]), method=method, selected=lambda number: ("0", "1")
            ).checked()
            trained = [outcome.client(k)["state"] for k in "01"]
            found[average] = sum(stats.up.get("decoder", 0) for stats in outcome.round_stats)
        mean = outcome.server["decoder"]
        own = [state["decoder"] for state in trained if isinstance(state, dict)]
        assert isinstance(mean, dict) and len(own) == 2
        name = "layers.1.weight"
        middle = (own[0][name] + own[1][name]) / 2
        assert torch.allclose(mean[name], middle, atol=1e-6) != average
    assert found == {False: 2 * decoder_bytes(), True: 3 * decoder_bytes()}


def test_fine_tuning_on_good_images_teaches_classes_that_a_client_never_had() -> None:
    # The decoder is replaced by one that paints the class's own pattern: what is left is the fine-tuning.
    class Painter(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v.reshape(-1, *IMAGE).clamp(0, 1)

    images, labels = pictures(20, np.random.Generator(np.random.PCG64(9)))
    test = torch.from_numpy(images).float()[:, None]
    patterns = torch.stack([test[torch.from_numpy(labels == c)].mean(0).flatten() for c in range(4)])
    for still in (False, True):
        at = client([0] * 20 + [1] * 20)
        at.fit(epochs=5)
        made = generated(Painter(), patterns, torch.arange(4), torch.full((WIDTH,), 0.15), 40, stream("made"))
        before = accuracy(at, test, labels)
        kept = weights_of(at.model)
        fine_tune(
            at.model, made, TrainSettings(epochs=5, lr=0.05), stream(), real=(at.train, 0.25), freeze_norms=still
        )
        assert before <= 0.5 < 0.8 < accuracy(at, test, labels)
        same = [torch.equal(kept[n], t) for n, t in at.model.state_dict().items() if "running" in n]
        assert same and all(same) == still


def accuracy(at: Client, x: Tensor, labels: Any) -> float:
    at.model.eval()
    with torch.no_grad():
        return float((at.model(x).argmax(1) == torch.from_numpy(labels)).float().mean())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"samples_per_class": 0}, "samples_per_class is 0, which switches FedVTC off"),
        ({"finetune_epochs": 0}, "finetune_epochs is 0, which switches FedVTC off"),
        ({"matching": -1.0}, "matching is -1.0; expected a number of at least 0"),
        ({"real_share": -0.5}, "real_share is -0.5; expected a number of at least 0"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        catalogue.make({"name": "fedvtc", **fields})


@pytest.mark.parametrize("preset", ["fedvtc-digits", "fedvtc-fashion-mnist"])
def test_presets_have_features_that_the_decoder_takes(preset: str) -> None:
    config = parse(sources.read_source(preset))
    assert isinstance(catalogue.make(config.method), FedVTC)
    shape = IMAGE if "digits" in preset else (1, 28, 28)
    assert config.models.feature_map is not None
    channels, height, width = config.models.feature_map
    assert latent_map(channels * height * width, shape) == (channels, height, width)


# privacy


def test_a_class_below_min_count_is_not_pulled_to_0() -> None:
    """It is not sent, so nothing comes back for it; classes of enough samples are as without privacy."""
    made = client([0] * 4 + [1] * 2)
    known = ClassTable.of({0: torch.ones(WIDTH)}, WIDTH).without_counts()
    msg = Payload({"prototypes": known, "deviation": torch.ones(WIDTH)})
    assert FedVTC(**FAST).bound(made, msg).pulled.tolist() == [True] * 4
    made.bound = MeansBound(1.0, 3)
    assert FedVTC(**FAST).bound(made, msg).pulled.tolist() == [True, False, False, False]
    assert FedVTC(**FAST, skip_unknown=True).bound(made, msg).pulled.tolist() == [True, False, False, False]
    first = Payload({"prototypes": ClassTable.empty(WIDTH).without_counts(), "deviation": torch.ones(WIDTH)})
    assert FedVTC(**FAST).bound(made, first).pulled.tolist() == [True, False, False, False]


def test_a_run_with_all_its_fields_protected() -> None:
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


@pytest.mark.parametrize(("steps", "taken"), [(3, 3), (None, 4)])
def test_turns_by_batches_take_as_many_steps_as_turns_by_epochs(steps: int | None, taken: int) -> None:
    for alternate in ("epoch", "batch"):
        made = client([0, 1] * 16, steps=steps)  # four batches
        FedVTC(**FAST, alternate=alternate).train(
            made, Payload({"prototypes": ClassTable.empty(WIDTH).without_counts(), "deviation": torch.ones(WIDTH)})
        )
        assert sum(fit.steps for fit in made.fits if not fit.aside) == taken
        assert sum(fit.steps for fit in made.fits if fit.aside) == taken


def test_some_of_the_synthetic_samples_are_synthetic_samples() -> None:
    with rng.seeded("decoder"):
        decoder = transposed_decoder(WIDTH, IMAGE)
    made = generated(decoder, torch.zeros(4, WIDTH), torch.arange(4), torch.ones(WIDTH), 3, stream())
    at = torch.tensor([5, 2])
    images, labels = next(iter(made.subset(at).batches(8)))
    assert torch.equal(labels, made.labels[at]) and torch.allclose(images, made.made(at), atol=1e-6)
