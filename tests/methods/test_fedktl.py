"""FedKTL: the simplex, the margin, training at clients and at the server, and messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.core import rng
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.core.server import Server
from polyfed.errors import PayloadError
from polyfed.methods.fedktl.alignment import BANDWIDTHS, feature_transformer, mmd
from polyfed.methods.fedktl.simplex import arcface, simplex_etf
from polyfed.methods.fedktl_lite import FedKTLLite
from polyfed.models.generators import RandomConvGenerator
from polyfed.testing.engine_wrappers import FaultyEngine, RecordingEngine
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation

FAST = {"server_epochs": 3}


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


# the simplex and the losses


@settings(max_examples=25, deadline=None)
@given(classes=st.integers(2, 60), seed=st.integers(0, 1000))
def test_the_simplex_has_unit_vectors_at_equal_angles(classes: int, seed: int) -> None:
    frame = simplex_etf(classes, rng.generator(seed)).double()
    cosines = frame @ frame.T
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1)
    assert torch.allclose(cosines, expected, atol=1e-6)


def test_without_margin_arcface_is_a_scaled_cosine() -> None:
    cosines = torch.rand(20, 5, generator=stream()) * 1.98 - 0.99
    labels = torch.arange(20) % 5
    assert torch.allclose(arcface(cosines, labels, margin=0.0, scale=64.0), 64 * cosines, rtol=1e-5, atol=1e-4)


def test_the_margin_by_hand() -> None:
    # Angle 60 degrees, margin 30 degrees: cos(90 degrees) = 0 for the right class; the other stays at 0.3. Scale 10.
    logits = arcface(torch.tensor([[0.5, 0.3]]), torch.tensor([0]), margin=math.pi / 6, scale=10.0)
    assert torch.allclose(logits, torch.tensor([[0.0, 3.0]]), atol=1e-5)
    # Angle 170 degrees is beyond 180 - 30: cos(170) - (pi / 6) sin(30 degrees), which is lower than any cosine.
    low = math.cos(math.radians(170))
    logits = arcface(torch.tensor([[low, 0.3]]), torch.tensor([0]), margin=math.pi / 6, scale=1.0)
    assert float(logits[0, 0]) == pytest.approx(low - math.pi / 12, abs=1e-5)


def test_the_margin_is_monotone_with_finite_gradients() -> None:
    cosines = torch.linspace(-1, 1, 401)[:, None].requires_grad_()
    out = arcface(cosines, torch.zeros(401, dtype=torch.int64), margin=0.5, scale=64.0)
    assert bool((out[1:, 0] >= out[:-1, 0] - 1e-4).all())
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert cosines.grad is not None and bool(torch.isfinite(cosines.grad).all())


def test_mmd_by_hand() -> None:
    # One point each, 3 apart: k(x, x) = k(y, y) = 4 kernels of value 1; k(x, y) = sum of exp(-9 / (2 a)).
    x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert float(mmd(x, y)) == pytest.approx(8 - 2 * sum(math.exp(-9 / (2 * a)) for a in BANDWIDTHS), rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 12), width=st.integers(1, 8), shift=st.floats(0.5, 5))
def test_mmd_is_0_for_equal_samples_and_positive_for_shifted_ones(rows: int, width: int, shift: float) -> None:
    x = torch.randn(rows, width, generator=stream())
    assert float(mmd(x, x)) == 0
    assert float(mmd(x, x.flip(0))) == pytest.approx(0, abs=1e-5)
    assert float(mmd(x, x + shift)) > 1e-3


# training at a client

LABELS = [0, 0, 1, 2, 2, 2]


def message(linears: Any, pairs: int = 2, width: int = 4) -> dict[str, Any]:
    latents = {c: torch.randn(width, generator=stream(f"latent {c}")) for c in range(pairs)}
    projection = {
        "weight": torch.randn(width, 3, generator=stream("projection")),
        "bias": torch.zeros(width),
    }
    message = {
        "latents": ClassTable.of(latents, width),
        "simplex": simplex_etf(3, stream("simplex")),
        "projection": projection,
    }
    return message | ({"images": torch.rand(pairs, 1, 1, 4, generator=stream("images"))} if pairs else {})


def ready(client: Any) -> Any:
    client.round, client.step = 1, "train"
    return client


@pytest.mark.parametrize("pairs", [0, 2])
def test_one_step_by_hand(linears: Any, pairs: int) -> None:
    # CE of s cos(angle + m [j = y]) over the batch, and mu times the mean over 2 images x 4 numbers of
    # (proj(f(image)) - latent)^2. The learning rate is 0.1, all six samples and both pairs are one batch.
    sent = message(linears, pairs)
    trained, reference = ready(linears().client("0", LABELS)), linears().client("0", LABELS)
    method = FedKTLLite(latent_width=4, guidance=2.0, margin=0.4, scale=5.0)
    method.train(trained, Payload(sent))
    x, y = reference.train.inputs.float() / 255, reference.train.labels
    z = reference.model(x)
    q = z / z.norm(dim=1, keepdim=True)
    logits = []
    for i in range(6):
        angle = torch.acos((sent["simplex"] * q[i]).sum(1))
        logits.append(5.0 * torch.stack([torch.cos(angle[j] + (0.4 if j == y[i] else 0.0)) for j in range(3)]))
        assert float(angle[y[i]].detach()) + 0.4 < math.pi  # so the guard is not used
    loss = F.cross_entropy(torch.stack(logits), y)
    if pairs:
        f = reference.model.features(sent["images"])
        error = f @ sent["projection"]["weight"].T - sent["latents"].values
        loss = loss + 2.0 * (error**2).sum() / 8
    loss.backward()  # type: ignore[no-untyped-call]
    for name, p in reference.model.named_parameters():
        assert torch.allclose(weights_of(trained.model)[name], p.detach() - 0.1 * p.grad, rtol=1e-4, atol=1e-6)


def test_uploads_are_normalised_mean_directions_after_training(linears: Any) -> None:
    client = ready(linears().client("0", LABELS))
    reply = FedKTLLite(latent_width=4).train(client, Payload(message(linears)))
    with torch.no_grad():
        q = F.normalize(client.model(client.train.inputs.float() / 255))
    table = reply["directions"]
    assert isinstance(table, ClassTable) and table.counts is not None
    assert table.classes.tolist() == [0, 1, 2] and table.counts.tolist() == [2, 1, 3]
    for c in range(3):
        mean = q[client.train.labels == c].mean(0)
        assert torch.allclose(table.values[c], mean / mean.norm(), atol=1e-6)
    assert (reply["channels"], reply["height"], reply["width"]) == (1, 1, 4)
    few = FedKTLLite(latent_width=4, min_class_count=2).train(client, Payload(message(linears)))["directions"]
    assert isinstance(few, ClassTable) and few.classes.tolist() == [0, 2]


def test_generated_images_do_not_enter_batchnorm_statistics(linears: Any) -> None:
    def statistics(pairs: int) -> dict[str, Tensor]:
        client = ready(linears(norm=True).client("0", LABELS))
        FedKTLLite(latent_width=4).train(client, Payload(message(linears, pairs)))
        return {name: buffer.clone() for name, buffer in client.model.named_buffers()}

    with_images, without = statistics(2), statistics(0)
    assert with_images and all(torch.equal(with_images[name], without[name]) for name in without)


def test_images_of_another_size_are_rejected(linears: Any) -> None:
    client = ready(linears().client("0", LABELS))
    sent = message(linears) | {"images": torch.zeros(2, 1, 2, 2)}
    with pytest.raises(PayloadError, match=r"field 'images' has shape \(2, 1, 2, 2\), expected \(2, 1, 1, 4\)"):
        FedKTLLite(latent_width=4).train(client, Payload(sent))


def test_the_projection_starts_from_the_servers_copy_unless_it_persists(linears: Any) -> None:
    for persist in (False, True):
        client = ready(linears().client("0", LABELS))
        sent = message(linears)
        FedKTLLite(latent_width=4, persist_projection=persist).train(client, Payload(sent))
        stored = client.memory.weights("projection")["weight"]
        assert torch.equal(stored, sent["projection"]["weight"]) is not persist


def test_the_prediction_is_the_nearest_vector_of_the_simplex(linears: Any) -> None:
    client = linears().client("0", LABELS)
    x = client.train.inputs.float() / 255
    with torch.no_grad():
        assert torch.equal(FedKTLLite().predict(client, x).argmax(1), client.model(x).argmax(1))  # no simplex yet
        client.state["simplex"] = simplex_etf(3, stream("another"))
        predictions = FedKTLLite().predict(client, x).argmax(1).tolist()
        for z, prediction in zip(client.model(x), predictions, strict=True):
            cosines = [float(z @ v) / float(z.norm()) for v in client.memory.tensor("simplex")]
            assert prediction == max(range(3), key=lambda j: cosines[j])


# training at the server


def aligned(uploads: list[ClassTable], rounds: int = 1, **fields: Any) -> Server:
    """Return a server that has trained on some uploads."""
    method = FedKTLLite(latent_width=8, **fields)
    server = Server((), 3, rounds, 0, lambda spec: None)  # type: ignore[arg-type, return-value]
    with rng.seeded("transformer"):
        server.state["transformer"] = weights_of(feature_transformer(3, 8))
    server.state["centroids"] = ClassTable.empty(8).without_counts()
    with rng.seeded("generator"):
        generator = RandomConvGenerator(8).requires_grad_(False)
    before = weights_of(generator)
    method.update_centroids(server, generator, uploads)
    assert all(torch.equal(before[name], tensor) for name, tensor in generator.state_dict().items())
    return server


def table(rows: dict[int, list[float]]) -> ClassTable:
    return ClassTable.of({c: F.normalize(torch.tensor(row), dim=0) for c, row in rows.items()}, 3)


def test_the_server_fits_the_distribution_of_latents() -> None:
    noise = stream("uploads")
    uploads = [
        table({c: (torch.eye(3)[c] + 0.3 * torch.randn(3, generator=noise)).tolist() for c in range(3)})
        for _ in range(8)
    ]
    q, y = torch.cat([t.values for t in uploads]), torch.cat([t.classes for t in uploads])
    drawn = torch.randn(200, 8, generator=stream("drawn"))

    def state(server: Server) -> tuple[float, Tensor]:
        transformer = feature_transformer(3, 8)
        transformer.load_state_dict(server.memory.weights("transformer"))
        with torch.no_grad():
            mapped = transformer.eval()(q)
        return float(mmd(mapped, drawn)), torch.stack([mapped[y == c].mean(0) for c in range(3)])

    before, after = aligned(uploads, server_epochs=0), aligned(uploads, server_epochs=100)
    assert state(after)[0] < 0.5 * state(before)[0]
    for server in (before, after):  # centroids are the class means of the transformed uploads
        assert torch.allclose(server.memory.table("centroids").values, state(server)[1], atol=1e-5)


def test_the_server_trains_with_one_upload_and_with_none() -> None:
    assert aligned([table({1: [0.0, 1.0, 0.0]})]).memory.table("centroids").classes.tolist() == [1]
    assert len(aligned([ClassTable.empty(3)]).memory.table("centroids")) == 0


def test_classes_have_pairs_after_their_first_upload_and_keep_them(linears: Any) -> None:
    # Client 0 has class 0, client 1 has classes 1 and 2. Only 0 is in round 1, only 1 in rounds 2 and 3.
    makers = linears().several([0, 0], [1, 1, 2], seeds=["a", "b"])
    recorder = RecordingEngine()
    method = FedKTLLite(latent_width=8, server_epochs=3)
    outcome = run_rounds(
        InMemoryClients(method, makers), 3, selected=lambda n: ("0",) if n == 1 else ("1",), wrap=recorder
    ).checked()
    sent = [{k: v for frame in seen.frames for k, v in decode(frame).items()} for seen in recorder.down]
    assert [message["latents"].classes.tolist() for message in sent] == [[], [0], [0, 1, 2]]  # type: ignore[union-attr]
    assert ["images" in message for message in sent] == [False, True, True]
    assert ["simplex" in message and "projection" in message for message in sent] == [True, True, False]
    first, last = sent[1]["latents"], outcome.server["centroids"]
    assert isinstance(first, ClassTable) and isinstance(last, ClassTable)
    after, before = last.row(0), first.row(0)
    assert after is not None and before is not None and torch.equal(after, before)  # class 0 was not reported again


def test_clients_that_failed_receive_the_simplex_again(linears: Any) -> None:
    makers = linears().several([0, 0], [1, 1, 2], seeds=["a", "b"])
    recorder = RecordingEngine()
    faulty = FaultyEngine(failing_clients=lambda call, tasks: ["1"] if call.round == 1 else [])
    run_rounds(
        InMemoryClients(FedKTLLite(latent_width=8, server_epochs=1), makers), 3, wrap=lambda e: recorder(faulty(e))
    )
    introduced = [
        (seen.client, any("simplex" in dict(decode(frame)) for frame in seen.frames)) for seen in recorder.down
    ]
    assert introduced == [("0", True), ("1", True), ("0", False), ("1", True), ("0", False), ("1", False)]


def test_bytes() -> None:
    # ToyFederation: 5 clients, 12 present classes in all, C = 4 classes, d = 64, images of 1x8x8; H = 64.
    # up: m_k (C + 1). down: once C * C and the projection's H d + H; from round 2 on C (image + H).
    with ToyFederation(FedKTLLite, FAST) as toy:
        first, second = toy.run().checked().round_stats
    sizes = {"channels": 0, "height": 0, "width": 0}
    assert first.up == second.up == {"directions": 4 * 12 * (4 + 1), **sizes}
    assert first.down == {"latents": 0, "simplex": 5 * 4 * 16, "projection": 5 * 4 * (64 * 64 + 64)}
    assert second.down == {"latents": 5 * 4 * 4 * 64, "images": 5 * 4 * 4 * 64}


def test_guidance_changes_the_models() -> None:
    models = {}
    for guidance in (0.0, 50.0):
        fields = {"guidance": guidance, "allow_degenerate": True, **FAST}
        with ToyFederation(FedKTLLite, fields) as toy:
            models[guidance] = toy.run().checked().client("0").weights("model")
    assert any(not torch.equal(models[0.0][name], models[50.0][name]) for name in models[0.0])
