"""FedLatent on series and tables: decoders, units of reconstruction, and what leaves a client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed import api
from polyfed.core import ClassTable, Client, Value, rng
from polyfed.core.client import weights_of
from polyfed.core.client_profile import Profile, layout
from polyfed.core.payload import Payload
from polyfed.data.dataset import Dataset, from_arrays
from polyfed.methods.fedlatent import FedLatent
from polyfed.methods.fedlatent.decoder import new_decoder
from polyfed.methods.fedlatent.units import Units, channel_moments, pooled_moments
from polyfed.models import ModelSpec, build
from polyfed.training import Samples, TrainSettings

WIDTH = 64
MODELS = {(3,): "tiny-table-wide", (2, 11): "tiny-series-gru"}


def client(inputs: Tensor) -> Client:
    """Return a client with samples of class 0 and 1 in turn."""
    shape = tuple(inputs.shape[1:])
    with rng.seeded("model"):
        net = build(ModelSpec(MODELS[shape]), shape=shape, classes=2)
    samples = Samples(inputs, torch.arange(len(inputs)) % 2)
    shapes = (layout(net), layout(net.head), net.feature_dim)
    profile = Profile("0", MODELS[shape], *shapes, 2, len(inputs), MODELS[shape], input_shape=shape)
    return Client(profile, net, samples, samples, TrainSettings(batch_size=64, lr=0.05), round=1, step="train")


# units


def test_moments_of_columns_and_channels_by_hand() -> None:
    # Columns 1, 3 and 5: mean 3, variance (4 + 0 + 4) / 3. A constant column has variance 0.
    rows = torch.tensor([[1.0, 7.0, 0.0], [3.0, 7.0, 0.0], [5.0, 7.0, 3.0]])
    assert torch.allclose(channel_moments(client(rows)), torch.tensor([[3.0, 7.0, 1.0], [8 / 3, 0.0, 2.0]]))
    # Series: over samples and steps. Channel 0 is 0 in sample 0 and 2 in sample 1, channel 1 is always -4.
    series = torch.stack([torch.tensor([2.0 * k, -4.0])[:, None].expand(2, 11) for k in range(2)])
    assert torch.allclose(channel_moments(client(series)), torch.tensor([[1.0, -4.0], [1.0, 0.0]]))


def test_pooled_units_by_hand() -> None:
    # Client a holds 0 and 2 (mean 1, variance 1), client b holds 6, 6, 6 (mean 6, variance 0). Union: mean 4,
    # variance 0.4 within + 6 between clients. The second column is 5 everywhere, so its unit is 1.
    reported = {"a": torch.tensor([[1.0, 5.0], [1.0, 0.0]]), "b": torch.tensor([[6.0, 5.0], [0.0, 0.0]])}
    assert torch.allclose(pooled_moments(reported, {"a": 2, "b": 3}), torch.tensor([[4.0, 5.0], [6.4**0.5, 1.0]]))


def test_two_standard_deviations_on_either_side_have_length_one() -> None:
    profile = client(torch.zeros(4, 2, 11)).profile
    units = Units(Payload({"units": torch.tensor([[10.0, -1.0], [3.0, 0.5]])}), profile)
    ends = torch.tensor([[4.0, -2.0], [16.0, 0.0]])[:, :, None].expand(2, 2, 11)  # mean - 2 std, mean + 2 std
    assert torch.equal(units.scaled(ends), torch.tensor([-0.5, 0.5])[:, None, None].expand(2, 2, 11))
    assert torch.equal(units.restored(units.scaled(ends)), ends)
    pictures = torch.rand(2, 1, 8, 8, generator=rng.generator("pictures"))
    same = Units(Payload({}), profile)
    assert same.scaled(pictures) is pictures and same.restored(pictures) is pictures


def test_clients_with_few_samples_send_no_moments() -> None:
    method = FedLatent(min_class_count=5)
    assert method.measure(client(torch.rand(4, 3)), Payload({})) == {}
    assert list(method.measure(client(torch.rand(5, 3)), Payload({}))) == ["moments"]


# decoders


@pytest.mark.parametrize("shape", [(1,), (30,), (1, 1), (9, 128), (3, 13)])
def test_decoders_have_the_shape_of_samples_and_receive_the_class(shape: tuple[int, ...]) -> None:
    with rng.seeded("decoder"):
        decoder = new_decoder(WIDTH, shape, 3)
    z = torch.randn(2, WIDTH, generator=rng.generator("latents"))
    first, second = (decoder(z, torch.full((2,), label)) for label in (0, 1))
    assert first.shape == (2, *shape) and not torch.equal(first, second)
    assert all(isinstance(part, torch.nn.Parameter) for part in decoder.state_dict(keep_vars=True).values())


@pytest.mark.parametrize("shape", list(MODELS))
def test_reconstruction_is_measured_in_units(shape: tuple[int, ...]) -> None:
    # Without cross-entropy's share of the decoder's gradient: after one step of Adam, every weight of the decoder has
    # moved against the sign of the gradient of mean((decoder(z) - (x - mean) / (4 std))^2).
    x = 100 + 7 * torch.randn(6, *shape, generator=rng.generator("inputs"))
    units = torch.stack([torch.full((shape[0],), 100.0), torch.full((shape[0],), 7.0)])
    method, ours, theirs = FedLatent(noise=0.0, decoder_lr=0.01, min_class_count=1), client(x), client(x)
    decoder = method.new_decoder(ours.seed, ours.profile)
    message: dict[str, Value] = {
        "means": ClassTable.empty(WIDTH).without_counts(),
        "decoder": weights_of(decoder),
        "units": units,
    }
    sent = Payload(method.train(ours, Payload(message))).weights("decoder")
    theirs.model.train()
    loss = F.mse_loss(decoder(theirs.model.features(x), theirs.train.labels), (x - 100) / 28)
    loss.backward()  # type: ignore[no-untyped-call]
    for name, p in decoder.named_parameters():
        assert p.grad is not None
        certain = p.grad.abs() > 1e-4  # below, rounding decides the sign
        assert torch.allclose(sent[name][certain], (p.detach() - 0.01 * p.grad.sign())[certain], atol=1e-4), name


# runs


def table(cache: Path) -> Dataset:
    """Return four classes around the corners of a rectangle, in columns of very different scales."""
    draw = np.random.Generator(np.random.PCG64(5))
    labels = np.arange(240) % 4
    corners = np.stack([labels % 2, labels // 2], 1) * 6.0
    values = (corners + draw.normal(size=(240, 2))) * [1000.0, 0.1] + [5000.0, 0.0]
    return from_arrays("corners", values[:160], labels[:160], values[160:], labels[160:], cache=cache)


def run(out: Path, data: Dataset, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "method": {"name": "fedlatent", "samples_per_class": 300, "finetune_lr": 0.01},
        "models": {"group": "tabular4"},
        "data": {"partition": {"scheme": "pathological", "classes_per_client": 2}},
        "clients": 4,
        "rounds": 3,
        "train": {"batch_size": 16, "epochs": 4, "optimizer": "adam", "lr": 0.01},
        "evaluate": {"every": 3},
        "engine": {"name": "serial"},
    }
    return api.run({**settings, **changes}, data=data, out=out)


def test_clients_of_a_table_learn_classes_that_they_do_not_hold(tmp_path: Path) -> None:
    data = table(tmp_path / "cache")
    result = run(tmp_path / "run", data)
    accuracy = result["accuracy"]["global"]
    assert accuracy["final"] > accuracy["also"]["untuned"]["final"] + 0.2
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    uploads = [(e["round"], e["client"], e["fields"]["moments"]) for e in events if "moments" in e.get("fields", {})]
    assert uploads == [(1, name, 2 * 2 * 4) for name in "0123"]  # once; mean and variance of two columns
    assert not (tmp_path / "run" / "artifacts").exists()  # only pictures are shown


def test_the_units_are_those_of_the_first_round(tmp_path: Path) -> None:
    few = {"name": "fedlatent", "samples_per_class": 2}
    result = run(tmp_path / "run", table(tmp_path / "cache"), participation=0.5, method=few, rounds=2)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert {e["round"] for e in events if "moments" in e.get("fields", {})} == {1}
    assert result["failures"] == []
