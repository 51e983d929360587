"""FedLatent: class statistics and a training step by hand, messages without rows of samples, and fine-tuning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed import catalogue
from polyfed.core import ClassTable, Client, rng
from polyfed.core.client import weights_of
from polyfed.core.client_profile import Profile, layout
from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedlatent import FedLatent
from polyfed.methods.fedlatent.class_gaussians import describe_classes, pool_classes, row_width, sample_class
from polyfed.methods.fedlatent.decoder import ConditionalDecoder
from polyfed.methods.local import Local
from polyfed.models import ModelSpec, build
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation, toy_images
from polyfed.training import Samples, TrainSettings

FAST: dict[str, Any] = {"samples_per_class": 6, "min_class_count": 1}
IMAGE = (1, 8, 8)
WIDTH = 64


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def client(labels: list[int], model: str = "tiny-resnet", **train: Any) -> Client:
    """Return a client that holds the given labels, with images of the toy federation."""
    images, classes = toy_images(max(labels.count(c) for c in range(4)), np.random.Generator(np.random.PCG64(3)))
    at = [int(np.flatnonzero(classes == c)[labels[:k].count(c)]) for k, c in enumerate(labels)]
    pixels = torch.from_numpy((images[at] * 255).astype(np.uint8))[:, None]
    samples = Samples(pixels, torch.tensor(labels, dtype=torch.int64))
    with rng.seeded("model", model):
        net = build(ModelSpec(model), shape=IMAGE, classes=4)
    shapes = (layout(net), layout(net.head), net.feature_dim)
    profile = Profile("0", model, *shapes, 4, len(labels), model, input_shape=IMAGE)
    options = TrainSettings(**{"batch_size": 64, "lr": 0.05, **train})
    return Client(profile, net, samples, samples, options, round=1, step="train")


def message(method: FedLatent, at: Client, means: dict[int, Tensor]) -> Payload:
    decoder = weights_of(method.new_decoder(at.seed, at.profile))
    return Payload({"means": ClassTable.of(means, WIDTH), "decoder": decoder})


def covariance(row: Tensor, features: int) -> Tensor:
    """Return the covariance that a row stands for, computed entry by entry."""
    parts = row.double().reshape(-1, features)
    low_rank = parts[2:].T @ parts[2:]
    return low_rank - torch.diag(low_rank.diagonal()) + torch.diag(parts[1])


# class statistics


def test_a_class_by_hand() -> None:
    # Four points (-2, 0), (2, 0), (0, 1), (0, -1) around (5, 7): variances (4 + 4) / 4 = 2 and (1 + 1) / 4 = 0.5,
    # no covariance. The first principal direction is the first axis, with standard deviation sqrt(2).
    points = torch.tensor([[3.0, 7.0], [7.0, 7.0], [5.0, 8.0], [5.0, 6.0]])
    table = describe_classes(points, torch.tensor([1, 1, 1, 1]), 1, 1)
    assert table.classes.tolist() == [1] and table.counted().tolist() == [4]
    row = table.values[0]
    assert torch.allclose(row[:4], torch.tensor([5.0, 7.0, 2.0, 0.5]))
    assert torch.allclose(row[4:].abs(), torch.tensor([2.0**0.5, 0.0]), atol=1e-6)


def test_pooled_variance_is_within_plus_between_clients() -> None:
    # One feature. Client A holds 0 and 2: mean 1, variance 1. Client B holds 6, 6, 6: mean 6, variance 0.
    # Union {0, 2, 6, 6, 6}: mean 4; within 2/5 * 1 + 3/5 * 0 = 0.4; between 2/5 * (1 - 4)^2 + 3/5 * (6 - 4)^2 = 6.
    labels = torch.zeros(5, dtype=torch.int64)
    a = describe_classes(torch.tensor([[0.0], [2.0]]), labels[:2], 1, 1)
    b = describe_classes(torch.tensor([[6.0], [6.0], [6.0]]), labels[:3], 1, 1)
    pooled = pool_classes([a, b], 1, 1)
    assert pooled.counts is None
    assert pooled.values[0].abs().tolist() == pytest.approx([4.0, 6.4, 6.4**0.5], rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), features=st.integers(1, 6))
def test_pooled_statistics_are_those_of_the_union(sizes: list[int], features: int) -> None:
    draw = rng.generator("pooled", *sizes, features)
    parts = [torch.randn(n, features, generator=draw) * 2 + torch.randn(features, generator=draw) for n in sizes]
    tables = [describe_classes(p, torch.full((len(p),), 2), features, 1) for p in parts]
    row = pool_classes(tables, features, features).values[0]  # all directions are kept, so nothing is lost
    union = torch.cat(parts).double()
    assert torch.allclose(row[:features].double(), union.mean(0), atol=1e-5)
    centred = union - union.mean(0)
    assert torch.allclose(covariance(row, features), centred.T @ centred / len(union), atol=1e-4)


def test_fewer_directions_keep_all_variances() -> None:
    draw = rng.generator("truncated")
    vectors = torch.randn(30, 5, generator=draw) @ torch.randn(5, 5, generator=draw)
    labels = torch.zeros(30, dtype=torch.int64)
    for rank in (0, 2, 9):
        row = describe_classes(vectors, labels, rank, 1).values[0]
        assert len(row) == row_width(5, rank)
        assert torch.allclose(row[5:10], vectors.var(0, unbiased=False), rtol=1e-4)
    assert bool((row[10 + 25 :] == 0).all())  # five features have five directions; further factors are 0


def test_samples_have_the_covariance_of_their_row() -> None:
    # Variances (3, 1) and the factor (1, 1): covariance [[3, 1], [1, 1]]; noise 2 adds 4 to both variances.
    row = torch.tensor([10.0, -10.0, 3.0, 1.0, 1.0, 1.0])
    z = sample_class(row, 2, 60000, 2.0, rng.generator("samples"))
    assert torch.allclose(z.mean(0), torch.tensor([10.0, -10.0]), atol=0.05)
    assert torch.allclose(torch.cov(z.T), torch.tensor([[7.0, 1.0], [1.0, 5.0]]), atol=0.12)
    still = sample_class(torch.tensor([1.0, 2.0, 0.0, 0.0]), 2, 3, 0.0, rng.generator("still"))
    assert still.tolist() == [[1.0, 2.0]] * 3  # no variance, no factors, no noise


def test_small_classes_are_left_out() -> None:
    vectors, labels = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 0, 0, 1, 2, 2])
    table = describe_classes(vectors, labels, 1, 2)
    assert table.classes.tolist() == [0, 2] and table.counted().tolist() == [3, 2]
    nothing = describe_classes(vectors, labels, 1, 4)
    assert len(nothing) == 0 and nothing.width == row_width(2, 1)
    assert len(pool_classes([nothing, nothing], 2, 1)) == 0


# training


def test_one_training_step_by_hand() -> None:
    # Loss: CE + 5 * mean over pixels of (decoder(z + 0.5 eps) - x)^2 + 3 * |z - m_y|^2 / (2 * 64 pixels), where the
    # last term is 0 for classes without a global mean. One full batch: model by SGD, decoder by its own Adam.
    method = FedLatent(reconstruction=5.0, alignment=3.0, noise=0.5, decoder_lr=0.01, min_class_count=1)
    labels = [0, 0, 1, 2, 2, 2]
    ours, theirs = client(labels, "tiny-mlp"), client(labels, "tiny-mlp")
    means = {0: torch.linspace(-1, 1, WIDTH), 2: torch.ones(WIDTH)}
    reply = method.train(ours, message(method, ours, means))

    order = torch.randperm(6, generator=theirs.stream("fit"))
    x, y = theirs.train.inputs[order].float() / 255, theirs.train.labels[order]
    decoder = method.new_decoder(theirs.seed, theirs.profile)
    z = theirs.model.features(x)
    decoded = decoder(z + 0.5 * torch.randn(6, WIDTH, generator=theirs.stream("noise")), y)
    distances = [((z[i] - means[int(c)]) ** 2).sum() for i, c in enumerate(y) if int(c) in means]
    assert len(distances) == 5
    loss = F.cross_entropy(theirs.model.head(z), y)
    loss = loss + 5 * ((decoded - x) ** 2).sum() / (6 * 64) + 3 * torch.stack(distances).sum() / 6 / 128
    loss.backward()
    for name, p in theirs.model.named_parameters():
        assert p.grad is not None
        assert torch.allclose(weights_of(ours.model)[name], p.detach() - 0.05 * p.grad, rtol=1e-4, atol=1e-6), name
    sent = Payload(reply).weights("decoder")
    for name, p in decoder.named_parameters():
        assert p.grad is not None
        expected = p.detach() - 0.01 * p.grad / (p.grad.abs() + 1e-8)  # the first step of Adam
        certain = p.grad.abs() > 1e-5  # below, rounding decides the sign
        assert torch.allclose(sent[name][certain], expected[certain], atol=1e-5), name


def test_without_its_losses_and_fine_tuning_it_is_local_training() -> None:
    off = {"reconstruction": 0.0, "alignment": 0.0, "samples_per_class": 0, "allow_degenerate": True}
    with ToyFederation(FedLatent, off) as federation:
        ours, local = federation.run().checked(), federation.run(method=Local()).checked()
        for k in "01234":
            assert equal(ours.client(k).weights("model"), local.client(k).weights("model"))


def test_the_decoder_receives_the_class() -> None:
    # Two classes, 8x8 images: class maps of 2x2 follow the 64 features, the inner decoder reads 64 + 2 * 4 numbers.
    with rng.seeded("decoder"):
        decoder = ConditionalDecoder(WIDTH, IMAGE, 2)
    z = torch.randn(3, WIDTH, generator=rng.generator("latents"))
    for label, maps in ((0, [1.0] * 4 + [0.0] * 4), (1, [0.0] * 4 + [1.0] * 4)):
        expected = decoder.decoder(torch.cat([z, torch.tensor(maps).expand(3, 8)], 1))
        assert torch.equal(decoder(z, torch.full((3,), label)), expected)
    assert not any("running" in name for name in decoder.state_dict())
    with pytest.raises(InputError, match=r"the models have 63 features; .* needs a multiple of 4"):
        ConditionalDecoder(63, IMAGE, 2)


# messages


def test_no_message_has_a_row_per_sample() -> None:
    # 23 and 14 are not the size of anything in the model or the decoder.
    method, at = FedLatent(rank=3), client([0] * 23 + [1] * 14 + [2] * 4)
    replies = [method.train(at, message(method, at, {})), method.describe(at, Payload({}))]
    means, statistics = replies[0]["means"], replies[1]["statistics"]
    assert isinstance(means, ClassTable) and isinstance(statistics, ClassTable)
    assert means.values.shape == (2, WIDTH) and means.classes.tolist() == [0, 1]  # class 2 is too small
    assert statistics.values.shape == (2, 5 * WIDTH) and statistics.counted().tolist() == [23, 14]
    decoder = Payload(replies[0]).weights("decoder")
    shapes = {name: tuple(t.shape) for name, t in decoder.items()}
    assert shapes == {name: tuple(t.shape) for name, t in method.new_decoder(0, at.profile).state_dict().items()}
    assert {name for reply in replies for name in reply} == {"means", "decoder", "statistics"}
    assert not any({23, 14, 37, 41} & set(shape) for shape in shapes.values())


def test_a_sample_touches_the_row_of_its_class_only() -> None:
    # What `by_sample` promises: with the model given, another image of class 0 leaves the row of class 1 as it was.
    method, rows = FedLatent(min_class_count=1), []
    for pixel in (0, 255):
        at = client([0] * 5 + [1] * 6)
        at.train.inputs[0] = pixel
        at.state["trained"] = True
        rows.append(method.describe(at, Payload({}))["statistics"])
    before, after = rows
    assert isinstance(before, ClassTable) and isinstance(after, ClassTable)
    assert torch.equal(before.values[1], after.values[1]) and not torch.equal(before.values[0], after.values[0])


def test_bytes_follow_the_formula() -> None:
    with ToyFederation(FedLatent, {**FAST, "rank": 2}) as federation:
        outcome = federation.run().checked()
    held, clients, row = sum(sum(n > 0 for n in share) for share in CLASS_COUNTS), len(CLASS_COUNTS), 4 * WIDTH
    weights = weights_of(FedLatent().new_decoder(0, client([0]).profile))
    decoder = sum(t.numel() * t.element_size() for t in weights.values())
    first, last = outcome.round_stats
    assert first.up == {"means": held * (row + 4), "decoder": clients * decoder}
    assert first.down == {"means": 0, "decoder": clients * decoder}
    assert last.up == {**first.up, "statistics": held * (4 * row + 4)}  # mean, variances and two factors
    assert last.down == {
        "means": clients * 4 * row,
        "decoder": 2 * clients * decoder,
        "statistics": clients * 4 * 4 * row,
    }


def test_the_server_averages_decoders_and_class_means() -> None:
    recording = RecordingEngine()
    with ToyFederation(FedLatent, FAST) as federation:
        outcome = federation.run(federation.config(rounds=1), wrap=recording).checked()
    replies = [decode(seen.frames[0]) for seen in recording.up if seen.steps == ("train",)]
    assert len(replies) == len(CLASS_COUNTS)
    state = Payload(outcome.server)
    for name, mean in state.weights("decoder").items():
        total = torch.stack([reply.weights("decoder")[name].double() for reply in replies]).mean(0)
        assert torch.allclose(mean.double(), total, atol=1e-6)
    rows = [(reply.table("means").row(1), reply.table("means").count(1)) for reply in replies]
    expected = sum(row * count for row, count in rows if row is not None) / (4 + 5 + 3)  # samples of class 1
    found = state.table("means").row(1)
    assert found is not None and torch.allclose(found, torch.as_tensor(expected), atol=1e-5)


# clients that miss rounds


def test_a_class_that_no_participant_holds_keeps_its_mean() -> None:
    with ToyFederation(FedLatent, FAST) as federation:  # client 0 holds classes 0 and 1, client 2 classes 2 and 3
        first = federation.run(federation.config(rounds=1), selected=lambda n: ("0",)).checked()
        both = federation.run(federation.config(rounds=2), selected=lambda n: ("0",) if n == 1 else ("2",)).checked()
    before, after = Payload(first.server).table("means"), Payload(both.server).table("means")
    assert before.classes.tolist() == [0, 1] and after.classes.tolist() == [0, 1, 2, 3]
    assert torch.equal(after.values[:2], before.values)


def test_synthetic_images_are_of_described_classes_only() -> None:
    with ToyFederation(FedLatent, FAST) as federation:  # client 1 holds classes 1 and 2; the others never trained
        outcome = federation.run(selected=lambda n: ("1",)).checked()
    state = Payload(outcome.server)
    assert state.table("statistics").classes.tolist() == [1, 2]
    latents, labels = FedLatent().sample(state, 3, rng.generator("labels"))
    assert labels.tolist() == [1, 1, 1, 2, 2, 2] and latents.shape == (6, WIDTH)


def test_nothing_described_leaves_models_as_they_are() -> None:
    with ToyFederation(FedLatent, {**FAST, "min_class_count": 1000}) as federation:
        ended = federation.run().checked().client("0")
    state = ended["state"]
    assert isinstance(state, dict) and isinstance(state["untuned"], dict)
    assert equal(state["untuned"], ended.weights("model"))


# fine-tuning


def statistics(method: FedLatent, at: Client) -> Payload:
    """Return a message for fine-tuning with Gaussians of all four classes."""
    draw = rng.generator("statistics")
    rows = {c: torch.rand(row_width(WIDTH, method.rank), generator=draw) for c in range(4)}
    decoder = weights_of(method.new_decoder(at.seed, at.profile))
    return Payload({"statistics": ClassTable.of(rows, row_width(WIDTH, method.rank)), "decoder": decoder})


def test_fine_tuning_moves_weights_and_no_running_statistics() -> None:
    method, at = FedLatent(samples_per_class=20), client([0] * 8)
    before = weights_of(at.model)
    method.fine_tune(at, statistics(method, at))
    after = weights_of(at.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name, _ in at.model.named_parameters()}
    assert any("running" in name for name in before)


def test_final_weights_lie_between_personal_and_fine_tuned_model() -> None:
    ended = {}
    for position in (0.0, 0.25, 1.0):
        method, at = FedLatent(samples_per_class=20, interpolation=position), client([0] * 8)
        before = weights_of(at.model)
        method.fine_tune(at, statistics(method, at))
        ended[position] = weights_of(at.model)
    assert equal(ended[0.0], before) and not equal(ended[1.0], before)
    for name in dict(at.model.named_parameters()):
        assert torch.allclose(ended[0.25][name], 0.75 * before[name] + 0.25 * ended[1.0][name], atol=1e-6)


def test_real_images_in_fine_tuning_keep_the_clients_own_class() -> None:
    found = []
    for ratio in (0.0, 3.0):
        method, at = FedLatent(samples_per_class=50, real_ratio=ratio), client([3] * 8)
        method.fine_tune(at, statistics(method, at))
        at.model.eval()
        with torch.no_grad():
            found.append(float(F.cross_entropy(at.model(at.train.inputs.float() / 255), at.train.labels)))
    assert found[1] < found[0]


def test_a_client_without_samples_is_fine_tuned_on_synthetic_images() -> None:
    method, at = FedLatent(samples_per_class=4), client([0])
    at.train = at.train.subset(torch.zeros(0, dtype=torch.int64))
    before = weights_of(at.model)
    method.fine_tune(at, statistics(method, at))
    assert not equal(before, weights_of(at.model))


def test_the_model_from_before_fine_tuning_is_evaluated_as_well() -> None:
    method, at = FedLatent(samples_per_class=20), client([0, 1, 2, 3])
    x = at.train.inputs.float() / 255
    at.model.eval()
    with torch.no_grad():
        logits = at.model(x)
        assert torch.equal(method.also_predict()["untuned"](at, x), logits)  # before the last round: the model
    method.fine_tune(at, statistics(method, at))
    at.model.eval()
    with torch.no_grad():
        assert torch.equal(method.predict_untuned(at, x), logits)
        assert not torch.equal(method.predict(at, x), logits)
    forgetful, other = FedLatent(samples_per_class=20, keep_untuned=False), client([0, 1, 2, 3])
    forgetful.fine_tune(other, statistics(forgetful, other))
    assert "untuned" not in other.state and forgetful.also_predict() == {}
    assert equal(weights_of(other.model), weights_of(at.model))


def test_a_run_saves_synthetic_images() -> None:
    with ToyFederation(FedLatent, FAST) as federation:
        folder = federation.new_folder()
        result = federation.experiment(federation.settings(), folder)
        assert [path.name for path in (folder / "artifacts").iterdir()] == ["synthetic-000002.safetensors"]
    assert result["accuracy"]["global"]["also"]["untuned"]["final"] <= 1


# options


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"samples_per_class": 0}, r"^method.samples_per_class is 0, which switches FedLatent off; "),
        ({"noise": -0.1}, r"^method.noise is -0.1; expected a number of at least 0$"),
        ({"rank": -1}, r"^method.rank is -1; expected a number of at least 0$"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        catalogue.make({"name": "fedlatent", **fields})
