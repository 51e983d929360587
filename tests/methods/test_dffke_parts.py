"""The parts of DFFKE: docking layers, decoder, losses, distillation and the replay of past rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.dffke_runs import CHANNELS, SMALL, WIDTH
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from polyfed.core import Client, Payload, Server
from polyfed.core.client import weights_of
from polyfed.core.rng import generator, seeded
from polyfed.methods.dffke import DFFKE
from polyfed.methods.dffke.decoder import EmbeddingDecoder, UpsampledConv2d, decoder_skeleton
from polyfed.methods.dffke.decoder_training import fit_decoder
from polyfed.methods.dffke.decoder_training import new_decoder as decoder_of_round
from polyfed.methods.dffke.docking import ClientSnapshot, fit_docking
from polyfed.methods.dffke.exchange import (
    DistillationBatch,
    as_probabilities,
    distill,
    exchange_batches,
    kl_divergence,
)
from polyfed.methods.dffke.local_training import (
    RunningAccuracy,
    Stop,
    exchange_optimizer,
    keep_optimizer,
    local_optimizer,
    train_to_accuracy,
)
from polyfed.methods.dffke.pixel_statistics import channel_moments, pooled_statistics
from polyfed.methods.dffke.public_images import images_at
from polyfed.methods.dffke.replay_index import ReplayIndex, newest, replay_batches, replay_rows
from polyfed.methods.dffke.synthetic_images import SyntheticImages
from polyfed.models import build

SERVER = Server((), 3, 1, 0, lambda spec: build(spec, shape=(1, 8, 8), classes=3))


def snapshot(name: str) -> ClientSnapshot:
    with seeded("client", name):
        model = SERVER.build("tiny-resnet")
        for _ in range(3):  # running statistics other than the initial ones
            model(torch.rand(8, 1, 8, 8))
        docking = nn.Linear(model.feature_dim, WIDTH).requires_grad_(False)
    model.eval().requires_grad_(False)
    return ClientSnapshot(model.backbone, model.head, docking, torch.zeros(0, WIDTH), torch.zeros(0))


def new_decoder(shape: tuple[int, int, int] = (1, 8, 8)) -> EmbeddingDecoder:
    with seeded("decoder"):
        return EmbeddingDecoder(WIDTH, shape, CHANNELS)


def tensors(client: ClientSnapshot) -> list[Tensor]:
    modules = (client.encoder, client.classifier, client.docking)
    return [tensor for module in modules for tensor in weights_of(module).values()]


# training at the server


def docked(embeddings: Tensor, targets: Tensor) -> ClientSnapshot:
    docking = nn.Linear(embeddings.shape[1], WIDTH)
    return ClientSnapshot(nn.Identity(), nn.Identity(), docking, embeddings, targets)


def test_docking_aligns_clients_with_equal_encoders() -> None:
    # Both see the same three clusters: one head can serve both, far above the 1/3 of chance.
    stream = generator("clusters")
    centres, labels = torch.randn(3, 6, generator=stream), torch.arange(30) % 3
    with seeded("docking"):
        clients = {
            name: docked(centres[labels] + 0.1 * torch.randn(30, 6, generator=stream), labels) for name in "ab"
        }
        head = nn.Linear(WIDTH, 3)
    losses = fit_docking(clients, head, iterations=60, lr=0.01)
    assert losses[-1] < 0.2 * losses[0]
    for client in clients.values():
        assert (head(client.docking(client.embeddings)).argmax(1) == labels).float().mean() > 0.9
        assert not client.docking.weight.requires_grad


def test_docking_takes_soft_targets_and_ends_above_0() -> None:
    with seeded("soft"):
        clients = {"a": docked(torch.randn(12, 4), torch.randn(12, 3).softmax(1))}
        head = nn.Linear(WIDTH, 3)
    losses = fit_docking(clients, head, iterations=40, lr=0.01, weight_decay=0.0)
    assert 0 <= losses[-1] < losses[0]


def test_only_the_decoder_is_trained() -> None:
    clients = {name: snapshot(name) for name in "ab"}
    codes = {name: torch.randn(20, WIDTH, generator=generator("codes", name)) for name in "ab"}
    before = {name: tensors(client) for name, client in clients.items()}
    losses = fit_decoder(SERVER, new_decoder(), clients, codes, iterations=40, batch=8, lr=0.01)
    assert 0 < sum(losses[-5:]) < sum(losses[:5])
    for name, client in clients.items():
        assert all(torch.equal(was, now) for was, now in zip(before[name], tensors(client), strict=True))
        assert all(p.grad is None for p in (*client.encoder.parameters(), *client.docking.parameters()))


def test_an_added_loss_changes_the_decoder_but_not_the_reported_fidelity() -> None:
    clients = {"a": snapshot("a")}
    codes = {"a": torch.randn(8, WIDTH, generator=generator("codes"))}
    first_losses, weights = [], []
    for added in (None, lambda name, images, features, stream: features.mean()):
        decoder = new_decoder()
        losses = fit_decoder(SERVER, decoder, clients, codes, iterations=2, batch=8, lr=0.01, added_loss=added)
        first_losses.append(losses[0])
        weights.append(weights_of(decoder)["grow.1.weight"])
    assert first_losses[0] == pytest.approx(first_losses[1])
    assert not torch.equal(*weights)


def test_a_single_code_is_skipped() -> None:
    decoder = new_decoder()
    before = weights_of(decoder)
    codes = {"a": torch.zeros(1, WIDTH)}
    assert fit_decoder(SERVER, decoder, {"a": snapshot("a")}, codes, iterations=3, batch=8, lr=1.0) == []
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(decoder).items())


# the decoder


def test_the_decoder_has_the_printed_size() -> None:
    with torch.device("meta"):
        decoder = EmbeddingDecoder(512, (3, 32, 32))
        large = EmbeddingDecoder(512, (3, 64, 64))
    assert sum(p.numel() for p in decoder.parameters()) == 4_426_051
    assert sum(p.numel() for p in large.parameters()) == 17_033_539


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 1, 4), (1, 28, 28)])
def test_images_have_the_shape_and_about_the_range_of_data(shape: tuple[int, int, int]) -> None:
    with seeded("codes"):
        images = new_decoder(shape)(torch.randn(40, WIDTH)).detach()
    assert images.shape == (40, *shape)
    assert float(images.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(images.std()) == pytest.approx(0.25, abs=0.01)


def test_the_decoder_scales_images_to_the_pooled_pixels_of_all_clients(linears: Any) -> None:
    # Pixels 0 and 1, three times as many at client 1: its mean is 1, that of client 0 is 1/2. Together 7/8, and the
    # variance of a binary value is 7/8 * 1/8.
    labels = ([0, 1], [0, 1, 2, 1, 0, 2])
    clients: list[Client] = [linears().client(str(k), own) for k, own in enumerate(labels)]
    clients[0].train.inputs.copy_(255 * torch.tensor([0, 1, 0, 1], dtype=torch.uint8))
    clients[1].train.inputs.fill_(255)
    server = Server(tuple(client.profile for client in clients), 3, 1, 0, lambda spec: linears().model())
    server.state["pixels"] = {}
    mean, std = pooled_statistics(server)
    assert (mean.tolist(), std.tolist()) == ([0.5], [0.25])  # nothing is known yet
    server.state["pixels"] = {client.name: channel_moments(client) for client in clients}
    mean, std = pooled_statistics(server)
    assert mean.tolist() == pytest.approx([7 / 8]) and std.tolist() == pytest.approx([math.sqrt(7) / 8])
    decoder = decoder_of_round(server, WIDTH, CHANNELS)
    images = decoder(torch.randn(40, WIDTH, generator=generator("codes")))
    assert float(images.mean()) == pytest.approx(7 / 8, abs=0.01)
    assert float(images.std()) == pytest.approx(math.sqrt(7) / 8, abs=0.01)


def test_images_are_decoded_again_bit_by_bit() -> None:
    decoder = new_decoder()
    with seeded("codes"):
        decoder(torch.randn(9, WIDTH))
    weights, codes = weights_of(decoder), {"a": torch.randn(12, WIDTH, generator=generator("codes"))}
    rows = torch.tensor([3, 1, 7])

    def decoded() -> Tensor:
        skeleton = decoder_skeleton(WIDTH, (1, 8, 8), CHANNELS)
        return SyntheticImages(skeleton, {"000001": (weights, codes)}).images("000001", "a", rows)

    assert torch.equal(decoded(), decoded())
    with torch.no_grad():
        assert torch.allclose(decoded(), decoder.eval()(codes["a"][rows]), atol=1e-5)
    assert all(torch.equal(weights_of(decoder)[name], tensor) for name, tensor in weights.items())


# the loss of a student


def distributions(rows: int, classes: int, stream: torch.Generator) -> Tensor:
    return torch.randn(rows, classes, generator=stream, dtype=torch.float64).softmax(1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 1000))
def test_kl_divergence(rows: int, classes: int, seed: int) -> None:
    # d/dz of mean_b sum_c T log(T / S) is (S - T) / B, because the T of a row sum to 1
    stream = generator("kl", seed)
    target = distributions(rows, classes, stream)
    z = torch.randn(rows, classes, generator=stream, dtype=torch.float64, requires_grad=True)
    divergence = kl_divergence(z, target)
    divergence.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and divergence >= 0
    assert torch.allclose(z.grad, (z.detach().softmax(1) - target) / rows, atol=1e-12)
    assert float(kl_divergence(target.log(), target)) == pytest.approx(0, abs=1e-12)


def test_kl_divergence_by_hand() -> None:
    # T = (3/4, 1/4), S = (1/2, 1/2): KL(T||S) = 3/4 log 3/2 + 1/4 log 1/2
    assert float(kl_divergence(torch.zeros(1, 2), torch.tensor([[0.75, 0.25]]))) == pytest.approx(0.130812, abs=1e-6)


def test_a_certain_teacher_gives_a_finite_loss() -> None:
    z = torch.tensor([[50.0, -50.0]], requires_grad=True)
    loss = kl_divergence(z, torch.tensor([[0.0, 1.0]]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and torch.isfinite(loss) and torch.isfinite(z.grad).all()


def test_noised_outputs_become_probabilities_again() -> None:
    rows = torch.tensor([[0.2, 0.8], [-0.5, 0.5], [1.0, 3.0], [-1.0, -2.0]])
    probabilities = as_probabilities(rows)
    assert torch.equal(probabilities[0], rows[0])  # unchanged, bit by bit
    assert torch.allclose(probabilities[1:], torch.tensor([[0.0, 1.0], [0.25, 0.75], [0.5, 0.5]]), atol=1e-6)
    loss = kl_divergence(torch.zeros(4, 2), probabilities)
    assert bool(torch.isfinite(loss)) and float(loss) > 0
    certain = nn.Linear(5, 3)(torch.ones(2, 5)).mul(100).softmax(1)
    assert torch.equal(as_probabilities(certain), certain)


def batch_of(images: Tensor, targets: Tensor) -> DistillationBatch:
    return DistillationBatch(images, targets, "targets", "1", torch.arange(len(images)))


def test_one_step_of_a_student_by_hand() -> None:
    # Adam's first step is lr * sign of the gradient, where that is not tiny.
    with seeded("student"):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
        x, target = torch.randn(5, 3), torch.randn(5, 3).softmax(1)
    before = weights_of(model)
    kl_divergence(model(x), target).backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer = exchange_optimizer([model], 0.01)
    steps = distill([model], [batch_of(x, target)], lambda b: kl_divergence(model(b.images), b.targets), optimizer)
    assert steps == 1
    for name, tensor in weights_of(model).items():
        assert torch.allclose(tensor, before[name] - 0.01 * gradients[name].sign(), atol=1e-5)


def test_batches_of_one_image_are_skipped_with_batchnorm() -> None:
    model = build("tiny-resnet", shape=(1, 8, 8), classes=3)
    statistics = {name: tensor for name, tensor in weights_of(model).items() if "running" in name}
    batches = [batch_of(torch.rand(n, 1, 8, 8), torch.full((n, 3), 1 / 3)) for n in (4, 1)]
    optimizer = exchange_optimizer([model], 0.01)
    assert distill([model], batches, lambda b: kl_divergence(model(b.images), b.targets), optimizer) == 1
    after = weights_of(model)
    assert not any(torch.equal(after[name], tensor) for name, tensor in statistics.items())


@pytest.mark.parametrize(("rows", "least", "turns"), [((200, 90), 10, 5), ((200, 90), 0, 2), ((8, 8, 8), 30, 7)])
def test_the_number_of_steps_does_not_depend_on_the_buffer(rows: tuple[int, ...], least: int, turns: int) -> None:
    # One teacher, at least 10 steps: 5 turns of two steps. Without a least, 2 turns are one epoch of 200 rows in
    # batches of 100. Two teachers and at least 30 steps: 30 / 2 / 2 turns. Without a buffer a turn has one step.
    fields = {**SMALL, "batch": 100, "least_steps": least}
    assert DFFKE(**fields).exchange_turns(rows) == turns
    assert DFFKE(**fields, buffer=0).exchange_turns(rows) == 2 * turns


# the batches of a student


def test_targets_do_not_change_while_the_student_learns(linears: Any) -> None:
    method = DFFKE(**{**SMALL, "batch": 2})
    client: Client = linears().client("0", [0, 1, 2])
    client.round, client.step = 1, "exchange"
    codes = {name: torch.randn(5, WIDTH, generator=generator(name)) for name in "01"}
    client.state["buffer"] = {"000001": {"decoder": weights_of(new_decoder((1, 1, 4))), "codes": codes}}
    msg = Payload({"turns": 4, "targets": {"1": distributions(5, 3, generator("t")).float()}})
    first = list(exchange_batches(client, msg, images_at(client, method), 2))
    for parameter in client.model.parameters():
        parameter.data.add_(1.0)
    again = list(exchange_batches(client, msg, images_at(client, method), 2))
    assert len(first) == 4
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets)
    targets = torch.cat([batch.targets for batch in first[:3]])  # batches of 2, 2 and 1: every row once
    assert sorted(targets.tolist()) == sorted(msg.weights("targets")["1"].tolist())


def test_batches_on_a_public_dataset_are_its_images(linears: Any) -> None:
    method = DFFKE(**{**SMALL, "batch": 2, "public": "digits"})
    client: Client = linears().client("0", [0, 1, 2])
    client.round, client.step = 1, "exchange"
    client.state["public"] = torch.arange(16, dtype=torch.uint8).reshape(4, 1, 1, 4)
    outputs = distributions(4, 3, generator("t")).float()
    msg = Payload({"turns": 2, "targets": {"1": outputs}})
    for batch in exchange_batches(client, msg, images_at(client, method), 2):
        for image, target in zip(batch.images, batch.targets, strict=True):
            row = round(float(image[0, 0, 0]) * 255) // 4
            assert torch.equal(target, outputs[row])
            assert torch.allclose(image.flatten(), torch.arange(4 * row, 4 * row + 4) / 255)


# replay


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.integers(1, 9).map(lambda n: f"{n:06d}"), st.integers(1, 20), min_size=1, max_size=5),
    st.integers(0, 30),
    st.integers(1, 7),
)
def test_replay_is_even_and_the_same_for_all_clients(sizes: dict[str, int], batches: int, batch: int) -> None:
    def stream(key: str) -> torch.Generator:
        return generator("review", key)

    replayed = replay_batches(sizes, batches, batch, stream)
    backwards = replay_batches(dict(reversed(sizes.items())), batches, batch, stream)
    assert [(key, rows.tolist()) for key, rows in replayed] == [(key, rows.tolist()) for key, rows in backwards]
    counts = [sum(key == other for other, _ in replayed) for key in sizes]
    assert len(replayed) == batches and max(counts) - min(counts) <= 1
    assert sum(len(rows) for _, rows in replayed) == replay_rows(sizes, batches, batch)
    for key, rows in replayed:
        assert len(set(rows.tolist())) == len(rows) == min(batch, sizes[key]) and int(rows.max()) < sizes[key]


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, 50)), st.one_of(st.none(), st.integers(0, 8)))
def test_the_newest_rounds_stay(rounds: set[int], limit: int | None) -> None:
    entries = newest({f"{n:06d}": n for n in rounds}, limit)
    assert list(entries.values()) == sorted(rounds)[max(0, len(rounds) - limit) if limit is not None else 0 :]


def test_nothing_is_replayed_without_past_rounds() -> None:
    assert replay_batches({}, 5, 8, lambda key: generator(key)) == [] and replay_rows({}, 5, 8) == 0


def test_the_replay_index_knows_which_client_misses_which_round() -> None:
    index = ReplayIndex(limit=2)
    for number, participants in ((1, "ab"), (2, "b"), (3, "ab")):
        key = f"{number:06d}"
        for client in participants:
            index.add_held(client, [*index.missing_rounds(client), key])
        index.add_round(key, dict.fromkeys(participants, 10 * number))
    assert index.held == {"a": ["000002", "000003"], "b": ["000002", "000003"]}  # a got round 2 when it came back
    assert index.row_counts("a") == {"000003": 30} and index.row_counts("b") == {"000002": 20, "000003": 30}
    assert index.prune("abc") == ["000002", "000003"]  # c has never participated
    assert "000001" not in index.sizes
    assert ReplayIndex.from_state(index.to_state(), 2) == index


# local training


def trained(linears: Any, max_epochs: int, stop: Stop) -> tuple[Client, int, float]:
    client: Client = linears(settings={"batch_size": 4, "lr": 0.5}).client("0", [0, 1, 2, 0, 1, 2])
    client.round, client.step = 1, "train"
    return client, *train_to_accuracy(client, 1.0, max_epochs, stop)


@pytest.mark.parametrize("stop", ["running", "evaluated"])
def test_local_training_stops_at_the_goal(linears: Any, stop: Stop) -> None:
    client, epochs, accuracy = trained(linears, 500, stop)
    assert accuracy == 1.0 and 0 < epochs < 500
    if stop == "evaluated":
        assert train_to_accuracy(client, 1.0, 500, stop) == (0, 1.0)  # the goal is already reached


def test_local_training_stops_at_the_limit(linears: Any) -> None:
    _, epochs, accuracy = trained(linears, 1, "evaluated")
    assert epochs == 1 and accuracy < 1.0


def test_the_running_accuracy_counts_predictions_before_each_step() -> None:
    # Identity as model: rows 0 and 2 predict classes 1 and 0. The second batch has one of one right: 2 of 4 in all.
    running = RunningAccuracy(nn.Identity())
    first = running.loss(torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 1, 1]))
    running.loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert running.value() == 0.5
    expected = (2 * math.log(1 + math.exp(1.0)) + math.log(1 + math.exp(2.0)) - 1.0) / 3  # -log p_1 of each row
    assert float(first) == pytest.approx(expected, abs=1e-6)


def test_local_training_continues_the_optimizer_of_the_exchange(linears: Any) -> None:
    # Adam after gradients g1 = 1 and g2 = 1: both bias-corrected moments are 1, so the second step is lr as well. A
    # third one with gradient -1 has m = (0.9 * 0.19 - 0.1) / (1 - 0.9^3) and v = 1: a new Adam would step by +lr.
    client: Client = linears(settings={"optimizer": "adam", "lr": 0.1}).client("0", [0, 1, 2])
    client.round = 4
    parameter = next(client.model.parameters())
    exchange = exchange_optimizer([client.model], 0.1)
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        exchange.step()
    keep_optimizer(client, exchange)
    before = parameter.detach().clone()
    optimizer = local_optimizer(client)
    parameter.grad = -torch.ones_like(parameter)
    optimizer.step()
    step = 0.1 * (0.9 * 0.19 - 0.1) / (1 - 0.9**3)
    assert torch.allclose(parameter, before - step, atol=1e-5)  # the weight decay of the exchange is 1e-5
    assert "adam" not in client.state  # local training ends the round


@pytest.mark.parametrize(("later", "name"), [(1, "adam"), (0, "sgd")])
def test_moments_of_another_round_or_optimizer_are_dropped(linears: Any, later: int, name: str) -> None:
    client: Client = linears(settings={"optimizer": name}).client("0", [0, 1, 2])
    client.round = 4
    exchange = exchange_optimizer([client.model], 0.1)
    for parameter in client.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    exchange.step()
    keep_optimizer(client, exchange)
    client.round += later
    assert not local_optimizer(client).state and "adam" not in client.state


@pytest.mark.parametrize(("channels", "out", "side"), [(64, 32, 7), (64, 64, 8), (128, 64, 3), (4, 3, 5)])
def test_convolution_of_an_upsampled_image(channels: int, out: int, side: int) -> None:
    """The transposed convolution has the outputs and gradients of upsampling and convolution in double precision."""
    with seeded("layer"):
        layer = UpsampledConv2d(channels, out).double()
        x = torch.randn(2, channels, side, side + 1, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(F.interpolate(x, scale_factor=2, mode="nearest"), layer.weight, padding=1)
    for got, wanted in zip(
        (layer(x), *torch.autograd.grad(layer(x).square().sum(), (x, layer.weight))),
        (expected, *torch.autograd.grad(expected.square().sum(), (x, layer.weight))),
        strict=True,
    ):
        assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-10)


# layers of the presets for CPUs: 32 channels for 8x8 images, 16 for 28x28
@pytest.mark.parametrize(("channels", "out", "side"), [(32, 32, 2), (32, 16, 4), (16, 16, 7), (16, 8, 14)])
def test_small_layers_of_the_decoder_keep_their_bits(channels: int, out: int, side: int) -> None:
    with seeded("layer"):
        layer, x = UpsampledConv2d(channels, out), torch.randn(5, channels, side, side)
    enlarged = nn.Upsample(scale_factor=2)(x)
    assert torch.equal(layer(x), F.conv2d(enlarged, layer.weight, padding=1))


def test_large_layers_of_the_decoder_multiply_less() -> None:
    layer, x = UpsampledConv2d(64, 64), torch.randn(1, 64, 8, 8)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    products = 2 * 64 * 64 * (16 * 16)  # of one kernel position
    assert 4 * products <= counter.get_total_flops() < 5 * products  # a 3x3 convolution has 9
