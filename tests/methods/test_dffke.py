"""DFFKE in whole rounds: teachers and students, replay buffers, message sizes, privacy and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.methods.dffke_runs import CHANNELS, FLOAT, ROWS, SMALL, WIDTH, messages, recorded_run
from torch import nn

from polyfed import api, catalogue, testing
from polyfed.core import Client, Payload, Reply
from polyfed.core.client import copy_into
from polyfed.errors import InputError
from polyfed.methods.dffke import DFFKE
from polyfed.methods.dffke.decoder import EmbeddingDecoder
from polyfed.testing.engine_wrappers import with_wrapped_steps
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import BATCH, CLASS_COUNTS, CLASSES, ToyFederation
from polyfed.training import Samples

# teachers and students


def test_students_get_the_outputs_of_all_others() -> None:
    _, recorder, _ = recorded_run(shares=CLASS_COUNTS[:3])
    outputs = messages(recorder, "teach", "up")
    for student, received in messages(recorder, "exchange").items():
        for number, message in enumerate(received):
            targets = message.weights("targets")
            assert sorted(targets) == sorted({"0", "1", "2"} - {student})
            for teacher, target in targets.items():
                assert torch.equal(target, outputs[teacher][number].tensor("targets"))
                assert torch.allclose(target.sum(1), torch.ones(len(target)), atol=1e-5)


def test_a_limited_number_of_teachers() -> None:
    _, recorder, _ = recorded_run({"teachers": 2})
    chosen = [tuple(m.weights("targets")) for received in messages(recorder, "exchange").values() for m in received]
    assert {len(teachers) for teachers in chosen} == {2} and len(set(chosen)) > 2


def test_a_single_client_does_not_exchange() -> None:
    _, recorder, states = recorded_run(shares=CLASS_COUNTS[:1])
    assert {message.steps for message in recorder.down} == {("warm_up", "embed"), ("train",)}
    assert states == {"0": {"warm": True, "reported": True}}


def test_exchange_teaches_classes_that_a_client_does_not_have() -> None:
    # Client 0 has samples of classes 0 and 1 only; after two rounds of exchange it recognises others.
    shares = ((15, 15, 0, 0), (0, 15, 15, 0), (0, 0, 15, 15))
    fields = {**SMALL, "width": 32, "decoder_channels": 16, "least_steps": 80, "max_local_epochs": 15}
    changed = {"rounds": 2, "train": {"batch_size": BATCH, "lr": 0.1}, "models": {"group": ["tiny-mlp"]}}
    accuracy = {}
    for name, chosen in (("dffke", fields), ("no exchange", {**fields, "exchange_epochs": 0, "least_steps": 0})):
        with ToyFederation(DFFKE, chosen) as toy:
            result = toy.experiment(toy.settings(shares, **changed))
        accuracy[name] = result["accuracy"]["global"]["final"]
    assert accuracy["dffke"] > accuracy["no exchange"] + 0.1


def test_docking_layers_of_one_architecture_start_with_equal_weights() -> None:
    models = {"group": ["tiny-cnn", "tiny-mlp"]}
    _, recorder, _ = recorded_run({"docking_steps": 0}, CLASS_COUNTS[:4], rounds=1, models=models)
    sent = {name: m[0].weights("docking")["weight"] for name, m in messages(recorder, "teach").items()}
    assert torch.equal(sent["0"], sent["2"]) and torch.equal(sent["1"], sent["3"])
    assert not torch.equal(sent["0"], sent["1"])


def test_encoders_of_different_widths_have_one_decoder() -> None:
    models = {"group": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}]}
    _, recorder, states = recorded_run(models=models)
    shapes = {name: m[0].weights("docking")["weight"].shape for name, m in messages(recorder, "teach").items()}
    assert shapes == {name: (WIDTH, 64 if int(name) % 2 == 0 else 32) for name in "01234"}
    assert len(states["0"]["buffer"]) == 2


def test_a_client_with_one_sample_participates(linears: Any) -> None:
    makers = linears(norm=True).several([0], [0, 1, 2, 1], [2, 2, 1])
    outcome = run_rounds(InMemoryClients(DFFKE(**SMALL), makers), 2).checked()
    assert set(outcome.ledger.digests) == {"0", "1", "2"}


# replay


@pytest.mark.parametrize(("limit", "rounds"), [(None, [1, 2, 3]), (0, []), (1, [3]), (2, [2, 3])])
def test_the_replay_buffer_is_limited(limit: int | None, rounds: list[int]) -> None:
    outcome, _, states = recorded_run({"buffer": limit}, CLASS_COUNTS[:2], rounds=3)
    assert {name: list(state["buffer"]) for name, state in states.items()} == {
        name: [f"{n:06d}" for n in rounds] for name in "01"
    }
    assert outcome.server["archive"] == {}  # no client misses a round


def test_a_client_is_sent_the_rounds_that_it_missed() -> None:
    participants = {1: ("0", "1"), 2: ("0", "1", "2")}
    outcome, recorder, states = recorded_run(shares=CLASS_COUNTS[:3], selected=lambda number: participants[number])
    first = messages(recorder, "teach")["0"][0]
    missing: Any = messages(recorder, "teach")["2"][0]["missing"]
    codes = missing["000001"]["codes"]
    assert all(torch.equal(codes[name], rows) for name, rows in first.weights("codes").items())
    assert outcome.round_stats[1].down["missing"] == FLOAT * WIDTH * (ROWS[0] + ROWS[1]) + decoder_bytes()
    assert list(states["2"]["buffer"]) == ["000001", "000002"]


# bytes


def decoder_bytes() -> int:
    with torch.device("meta"):
        state = EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS).state_dict()
    return sum(t.numel() * t.element_size() for t in state.values())


def test_bytes() -> None:
    # up:   |theta_k| + N_k d + N_k labels + N_k C, 2 numbers per channel in round 1, and n_mem C from round 2
    # down: |Dec| + (d + 1) h + sum_i N_i h + sum_{i != k} (N_i + n_mem) C
    # A client is sent the codes of all clients, with its own: these may have been noised on their way up.
    outcome, recorder, _ = recorded_run(rounds=2)
    features, clients, rows = 64, len(CLASS_COUNTS), sum(ROWS)
    models = sum(
        t.numel() * t.element_size()
        for uploads in messages(recorder, "embed", "up").values()
        for t in uploads[0].weights("model").values()
    )
    # I = max(8 / 2 / 4, 1 * ceil(12 / 8)) turns, of one batch of 8 from the only past round
    turns = 2
    memory = FLOAT * turns * 8 * clients * CLASSES
    docking = FLOAT * (features + 1) * WIDTH * clients
    first, second = outcome.round_stats
    up = {"model": models, "embeddings": FLOAT * rows * features, "labels": FLOAT * rows}
    up |= {"targets": FLOAT * rows * CLASSES, "epochs": 0, "accuracy": 0}
    down = {"decoder": decoder_bytes() * clients, "docking": docking, "codes": FLOAT * rows * WIDTH * clients}
    down |= {"targets": FLOAT * rows * CLASSES * (clients - 1), "turns": 0, "review": 0}
    assert first.up == up | {"pixels": FLOAT * 2 * clients} and first.down == down
    assert second.up == up | {"memory": memory}
    assert second.down == down | {"memory": memory * (clients - 1)}


# privacy


def test_codes_come_from_the_uploaded_embeddings() -> None:
    _, recorder, _ = recorded_run(rounds=1, privacy={"embeddings": {"clip": 5.0, "noise": 2.0}})
    uploads = messages(recorder, "embed", "up")
    for name, received in messages(recorder, "teach").items():
        docking = nn.Linear(64, WIDTH)
        copy_into(docking, received[0].weights("docking"))
        with torch.no_grad():
            codes = docking(uploads[name][0].tensor("embeddings"))
        assert torch.allclose(codes, received[0].weights("codes")[name], atol=1e-4)


def test_samples_are_not_used_between_upload_and_local_training() -> None:
    def without_samples(name: str, client: Client, msg: Payload, body: Any) -> Reply | None:
        if name not in ("teach", "exchange"):
            return body()  # type: ignore[no-any-return]
        own = client.train
        client.train = Samples(torch.zeros_like(own.inputs), torch.zeros_like(own.labels))
        try:
            return body()  # type: ignore[no-any-return]
        finally:
            client.train = own

    with ToyFederation(DFFKE, SMALL) as toy:
        config = toy.config(CLASS_COUNTS[:2])
        wrapped = toy.run(config, method=with_wrapped_steps(DFFKE, without_samples)(**SMALL)).checked()
        assert wrapped.hash == toy.run(config).checked().hash


def test_a_run_with_noise_on_every_exchanged_field() -> None:
    fields = {**SMALL, "docking_target": "soft", "pixel_statistics": False}
    noise = {name: {"clip": 1.0, "noise": 0.5} for name in ("embeddings", "outputs", "targets", "memory")}
    with ToyFederation(DFFKE, fields) as toy:
        result = toy.experiment(toy.settings(CLASS_COUNTS[:3], privacy=noise))
    privacy = result["privacy"]
    assert result["failures"] == []
    units = {name: facts["unit"] for name, facts in privacy["fields"].items()}
    assert units == {"embeddings": "row", "outputs": "row", "targets": "message", "memory": "message"}
    assert all(spent["releases"]["targets"] == 2 for spent in privacy["clients"].values())
    assert all(
        "with the client's model taken as known" in spent["holds_for"] for spent in privacy["clients"].values()
    )


# the public dataset


def test_a_public_dataset_replaces_synthetic_images() -> None:
    outcome, recorder, _ = recorded_run({"public": "digits", "public_samples": 12})
    assert {message.steps for message in recorder.up} == {
        ("warm_up", "store_public", "teach"),
        ("exchange",),
        ("train",),
    }
    first, second = outcome.round_stats
    assert first.up == second.up == {"targets": FLOAT * 12 * CLASSES * 5, "epochs": 0, "accuracy": 0}
    outputs = {"targets": FLOAT * 12 * CLASSES * 5 * 4, "turns": 0}
    assert first.down == {**outputs, "public": 12 * 8 * 8 * 5}  # once, as bytes
    assert second.down == outputs


def test_an_unknown_public_dataset_is_refused_before_anything_runs() -> None:
    with ToyFederation(DFFKE, {"public": "digitz"}) as toy:
        folder = toy.new_folder()
        with pytest.raises(InputError, match="digitz"):
            toy.experiment(toy.settings(), folder)
        assert not folder.exists()


def test_the_clients_own_dataset_is_refused_as_public() -> None:
    with pytest.raises(InputError, match=r"method\.public is 'digits', which is the clients' own data"):
        api.run("quickstart", method={"name": "dffke", "public": "digits"}, clients=2, rounds=1)


# options


OPTIONS: list[dict[str, Any]] = [
    {"buffer": 1, "docking_target": "soft", "stop": "evaluated", "pixel_statistics": False},
    {"public": "digits", "public_samples": 20, "teachers": 2},
]


@pytest.mark.parametrize("fields", OPTIONS, ids=["buffer", "public"])
@pytest.mark.parametrize("check", ["resumed_equals_uninterrupted", "failing_clients_tolerated"])
def test_options_pass_the_battery(check: str, fields: dict[str, Any]) -> None:
    testing.run_check(check, DFFKE, {**SMALL, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tau": 0.0}, r"^method.tau is 0.0; expected a number above 0 and at most 1"),
        ({"tau": 1.5}, r"^method.tau is 1.5"),
        ({"teachers": 0}, r"^method.teachers is 0; expected a number of at least 1$"),
        ({"buffer": -1}, r"^method.buffer is -1; expected a number of at least 0$"),
        ({"lr": 0.0}, r"^method.lr is 0.0; expected a number above 0"),
        ({"docking_target": "hard"}, r"^method.docking_target is 'hard'"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        catalogue.make({"name": "dffke", **fields})


def test_synthetic_images_are_saved_for_figures(tmp_path: Path) -> None:
    with ToyFederation(DFFKE, SMALL) as toy:
        toy.experiment(toy.settings(rounds=1), tmp_path / "run")
    saved = load_file(tmp_path / "run" / "artifacts" / "synthetic-000001.safetensors")
    assert saved["images"].shape == (4 * CLASSES, 1, 8, 8) and saved["labels"].tolist() == sorted([0, 1, 2, 3] * 4)
    assert float(saved["images"].min()) >= 0 and float(saved["images"].max()) <= 1
