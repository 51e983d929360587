"""Alternating training of model and decoder in FedVTC."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.methods.fedvtc_clients import FAST, WIDTH, bound_of, client, equal, stream

from polyfed.benchmarks.memory import peak_allocated
from polyfed.core import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload, Value
from polyfed.methods.fedvtc.alternating_training import train_decoder, train_model
from polyfed.methods.fedvtc.method import FedVTC
from polyfed.methods.fedvtc.variational_bound import reparameterise


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


def test_prototypes_are_class_means_in_evaluation_mode() -> None:
    at = client([0] * 5 + [2] * 7)
    sent: dict[str, Value] = {"prototypes": ClassTable.empty(WIDTH).without_counts(), "deviation": torch.ones(WIDTH)}
    reply = Payload(FedVTC().train(at, Payload(sent)))
    table = reply.table("prototypes")
    assert table.classes.tolist() == [0, 2] and table.counts is None
    at.model.eval()
    with torch.no_grad():
        z = at.model.features(at.train.inputs.float() / 255)
    assert torch.allclose(table.values[0], z[:5].mean(0), atol=1e-5)
    assert torch.allclose(table.values[1], z[5:].mean(0), atol=1e-5)
    few = Payload(FedVTC(min_class_count=6).train(client([0] * 5 + [2] * 7), Payload(sent)))
    assert few.table("prototypes").classes.tolist() == [2]


def test_alternating_training_needs_less_memory_than_joint_training() -> None:
    at = client([0] * 8 + [1] * 8, "tiny-resnet", batch_size=16)
    bound = bound_of(FedVTC(), at)
    x, y = next(iter(at.train.batches(16)))
    at.model.train()

    def joint() -> None:
        z, sigma = at.model.features(x), bound.deviation()
        decoded = bound.decoder(reparameterise(z, sigma, torch.randn(z.shape, generator=stream())))
        loss = bound.loss(x, y, z, sigma, decoded, at.model.features(decoded))
        (F.cross_entropy(at.model.head(z), y) + loss).backward()  # type: ignore[no-untyped-call]

    def alternating() -> None:
        train_model(at, bound, 0)
        train_decoder(at, bound, 0)

    peaks = {work.__name__: peak_allocated(work) for work in (joint, alternating)}
    assert 0 < peaks["alternating"] < peaks["joint"]


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
