"""Runs of FedVTC: averages over clients, bytes, options and privacy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.methods.fedvtc_clients import FAST, IMAGE, PAPER, WIDTH, client, equal
from torch import Tensor

from polyfed import catalogue, testing
from polyfed.core import ClassTable, Client, rng
from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client import weights_of
from polyfed.core.codec import encode
from polyfed.core.message_header import read_header
from polyfed.core.payload import Payload
from polyfed.core.schema import TreeField, check_header
from polyfed.errors import InputError, PayloadError
from polyfed.methods.fedvtc.class_moments import mean_and_variance
from polyfed.methods.fedvtc.decoder import build_decoder
from polyfed.methods.fedvtc.figures import IMAGES_PER_CLASS
from polyfed.methods.fedvtc.method import FedVTC
from polyfed.models.decoders import transposed_decoder
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation


def test_classes_without_uploads_keep_their_prototype() -> None:
    known = ClassTable.of({0: torch.tensor([9.0]), 3: torch.tensor([5.0])}, 1)
    uploads = [ClassTable.of({0: torch.tensor([1.0])}, 1), ClassTable.of({0: torch.tensor([3.0])}, 1)]
    after = known.updated(mean_over_clients(uploads, width=1))
    assert after.classes.tolist() == [0, 3] and after.values.flatten().tolist() == [2.0, 5.0]


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
            decoders.append(weights_of(transposed_decoder(WIDTH, at.input_shape)))

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
    # once: means of features and of squared features up, variances of all four classes down
    assert last.up["moments"] == pytest.approx(2 * row * held, abs=8 * held) and "moments" not in first.up
    assert last.down["variances"] == pytest.approx(4 * row * clients, abs=8 * 4 * clients)


def test_decoders_of_another_shape_are_rejected() -> None:
    profile = client([0]).profile
    field = {"decoder": TreeField(layout=vars(FedVTC.describe)["messages"].up["decoder"].layout)}
    right = weights_of(build_decoder(None, 0, profile, "batch"))
    check_header(read_header(encode({"decoder": right}).data), field, FedVTC(), profile)
    wrong = {**right, "layers.1.weight": torch.zeros(3, 3)}
    with pytest.raises(PayloadError, match=r"'layers\.1\.weight' of shape \(3, 3\)"):
        check_header(read_header(encode({"decoder": wrong}).data), field, FedVTC(), profile)


@pytest.mark.parametrize(
    "fields",
    [
        {"vtc": "regular", "decoder_norm": "group", "min_class_count": 4},
        {"recompute": False, "finetune_norms": "trained", "real_share": 0.5, "matching": 0.0, "spread": "learned"},
        {**PAPER, "spread": "learned", "real_share": 0.0, "skip_unknown": False, "decoder_lr": None},
    ],
)
@pytest.mark.parametrize(
    "check",
    [
        "independent_of_client_order",
        "client_with_one_sample",
        pytest.param("independent_of_memory_budget", marks=pytest.mark.all_methods),  # the defaults run always
    ],
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
    x = at.train.inputs.float() / 255
    at.model.eval()
    method, logits = FedVTC(), at.model(x)
    assert torch.equal(method.predict_untuned(at, x), logits)
    at.state["untuned"] = weights_of(at.model)
    with torch.no_grad():
        at.model.head.bias.add_(1.0)  # type: ignore[operator]
    assert torch.equal(method.predict_untuned(at, x), logits)
    assert not torch.equal(method.predict(at, x), logits)


def test_variances_are_those_within_and_between_clients() -> None:
    # Class 0 at two clients: features (1, 3) and (5, 7). Within each client the variance is 1, the means are 2 and 6.
    uploads = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])]
    tables = [ClassTable.of({0: torch.cat([z, z.square()], 1).mean(0)}, 2) for z in uploads]
    means, variances = mean_and_variance(mean_over_clients(tables, width=2))
    # by hand: mean 4, variance 1 within and 4 between clients
    assert means.classes.tolist() == variances.classes.tolist() == [0]
    assert means.values.tolist() == [[4.0]] and variances.values.tolist() == [[5.0]]


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


def test_a_run_with_privacy_for_all_fields() -> None:
    noise: dict[str, Any] = {
        "prototypes": {"clip": 1.0, "noise": 0.1, "min_count": 3},
        "deviation": {"clip": 10.0, "noise": 0.1},
        "decoder": {"clip": 10.0, "epsilon": 100.0, "releases": 1},
        "moments": {"clip": 10.0, "epsilon": 100.0, "releases": 1, "min_count": 3},
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
        "moments": "row",
    }
    assert privacy["clients"]["0"]["releases"] == {"prototypes": 2, "deviation": 2, "decoder": 1, "moments": 1}
    assert privacy["fields"]["decoder"]["planned_releases"] == 1
