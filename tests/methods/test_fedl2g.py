"""FedL2G: local training, feedback, averages, warm-up, bytes and controls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.methods.conftest import Linears
from tests.methods.fedl2g_reference import SPACES, Space, gradient_by_autograd
from torch import Tensor

from polyfed import catalogue, testing
from polyfed.core import rng
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.methods.fedl2g.method import FedL2G
from polyfed.methods.fedl2g.study_and_quiz import random_study_batches, study_quiz_split
from polyfed.runs.folder import RunFolder
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.rounds import InMemoryClients, Outcome, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation


def client_of(linears: Any, labels: list[int], **more: Any) -> Any:
    client = linears(**more).client("0", labels)
    client.round, client.step = 1, "train"
    return client


LABELS = [0, 1, 2] * 10


def random_vectors(width: int, classes: int = 3) -> Tensor:
    return torch.randn(classes, width, generator=rng.generator("vectors"))


@pytest.mark.parametrize("train_on_quiz", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_one_training_step_by_hand(linears: Any, space: Space, train_on_quiz: bool) -> None:
    # CE + weight * mean over samples and entries of (out - v_y)^2, on all samples or the study set as one batch.
    method = FedL2G(space=space, weight=2.0, train_on_quiz=train_on_quiz)
    mine, theirs = client_of(linears, LABELS), client_of(linears, LABELS)
    v = random_vectors(3)
    method.train(mine, Payload({"vectors": v}))
    samples = theirs.train if train_on_quiz else study_quiz_split(theirs, 10)[0]
    x, y = samples.inputs.float() / 255, samples.labels
    f = theirs.model.features(x)
    z = theirs.model.head(f)
    pull = sum(((z if space == "logit" else f)[i] - v[int(c)]).square().sum() for i, c in enumerate(y)) / (3 * len(y))
    (F.cross_entropy(z, y) + 2.0 * pull).backward()
    for name, p in theirs.model.named_parameters():
        assert torch.allclose(weights_of(mine.model)[name], p.detach() - 0.1 * p.grad, rtol=1e-4, atol=1e-6)


def test_guidance_of_features_does_not_train_the_head(linears: Any) -> None:
    # One step from the same weights: the head has the gradient of the cross-entropy for any vectors.
    heads = []
    for v in (random_vectors(3), 100 * random_vectors(3)):
        client = client_of(linears, LABELS)
        FedL2G(space="feature", clip_norm=None).train(client, Payload({"vectors": v}))
        heads.append(weights_of(client.model.head))
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_feedback_is_the_gradient_for_the_study_batch(linears: Any) -> None:
    for space in SPACES:
        method, client = FedL2G(space=space), client_of(linears, LABELS, settings={"batch_size": 4, "lr": 0.1})
        client.step = "quiz_feedback"
        v = random_vectors(3)
        got = method.quiz_feedback(client, Payload({"vectors": v}))["gradient"]
        study, quiz = study_quiz_split(client, 10)
        ((x, y),) = random_study_batches(client, study, 1)
        quiz_batch = quiz.inputs.double() / 255, quiz.labels
        model = client.model.double()
        expected = gradient_by_autograd(model, space, v.double(), (x.double(), y), quiz_batch, 0.1)
        assert isinstance(got, ClassTable)
        assert got.classes.tolist() == sorted(set(y.tolist()))
        assert torch.allclose(got.values.double(), expected[got.classes], rtol=1e-4, atol=1e-8)


def test_feedback_does_not_change_the_client(linears: Any) -> None:
    client = client_of(linears, LABELS, norm=True)
    before, tensors = weights_of(client.model), [*client.model.parameters(), *client.model.buffers()]
    for gradient in ("jvp", "finite_diff"):
        FedL2G(gradient=gradient).quiz_feedback(client, Payload({"vectors": random_vectors(3)}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(client.model).items())
    assert all(a is b for a, b in zip(tensors, [*client.model.parameters(), *client.model.buffers()], strict=True))
    assert all(p.grad is None for p in client.model.parameters())
    assert all(module.training for module in client.model.modules())
    assert client.state == {} and client.fits == []


@given(st.integers(1, 60), st.integers(1, 25), st.integers(1, 15))
@settings(max_examples=25, deadline=None)
def test_study_and_quiz_set_split_the_training_data(n: int, size: int, wanted: int) -> None:
    client = Linears(pixels=4, settings={"batch_size": size}).client("0", [i % 3 for i in range(n)])
    study, quiz = study_quiz_split(client, wanted)
    assert len(study) + len(quiz) == n
    assert len(quiz) == (wanted if n >= wanted + size else max(1, n // 10))
    rows = torch.cat([study.inputs, quiz.inputs]).flatten(1)
    assert sorted(rows.tolist()) == sorted(client.train.inputs.flatten(1).tolist())
    client.round, client.step = 7, "another"
    assert torch.equal(study_quiz_split(client, wanted)[1].inputs, quiz.inputs)  # in every round


def vectors_after(method: FedL2G, rounds: int = 1, **options: Any) -> Outcome:
    with ToyFederation(FedL2G, {}) as toy:
        return toy.run(toy.config(rounds=rounds), method=method, **options).checked()


def test_warm_up_trains_the_vectors_before_any_model() -> None:
    # The first message with which clients train has vectors that three exchanges of gradients have moved.
    recorder = RecordingEngine()
    with ToyFederation(FedL2G, {}) as toy:
        toy.run(toy.config(rounds=2), method=FedL2G(warmup=3), wrap=recorder).checked()
    steps = [message.steps for message in recorder.down if message.client == "0"]
    assert steps == [("quiz_feedback",)] * 3 + [("train", "quiz_feedback")] * 2
    sent = [decode(frame) for m in recorder.down if m.client == "0" for frame in m.frames if frame]
    vectors = [message.tensor("vectors") for message in sent if "vectors" in message]
    assert len(vectors) == 5 and all(not torch.equal(a, b) for a, b in pairwise(vectors))
    batches = [decode(frame).table("gradient").values for m in recorder.up if m.client == "0" for frame in m.frames]
    assert not any(torch.equal(a, b) for a, b in pairwise(batches))  # a new study batch in every exchange


def test_the_default_warm_up_has_the_50_exchanges_of_the_released_code(linears: Any) -> None:
    called: list[tuple[str, ...]] = []

    class RecordingCohort:
        def call(self, *steps: Any, **given: Any) -> dict[str, Payload]:
            called.append(tuple(step.__name__ for step in steps))
            return {}

    makers = linears().several([0, 1])
    server = Server(InMemoryClients(FedL2G(), makers).roster(), 3, 10, 0, lambda spec: makers[0]().model)
    FedL2G().init(server)
    for server.round in (1, 2):
        FedL2G().round(server, RecordingCohort())  # type: ignore[arg-type]
    assert called == [("quiz_feedback",)] * 50 + [("train", "quiz_feedback")] * 2


def test_rows_are_averaged_over_their_senders() -> None:
    def row(c: int, *values: float) -> ClassTable:
        return ClassTable.of({c: torch.tensor(values)}, 2)

    server = Server((), 3, 1, 0, lambda spec: None)  # type: ignore[arg-type, return-value]
    server.state["vectors"] = torch.zeros(3, 2)
    tables = [row(0, 1.0, 2.0), row(0, 3.0, 6.0), row(2, 5.0, 5.0), ClassTable.empty(2).without_counts()]
    owners, senders = FedL2G().mean_gradient(server, tables)
    assert owners.tolist() == [[2.0, 4.0], [0.0, 0.0], [5.0, 5.0]] and senders.tolist() == [2, 0, 1]
    participants, _ = FedL2G(average="participants").mean_gradient(server, tables)
    assert participants.tolist() == [[1.0, 2.0], [0.0, 0.0], [1.25, 1.25]]
    reversed_order, _ = FedL2G().mean_gradient(server, tables[::-1])
    assert torch.equal(reversed_order, owners)
    clipped, _ = FedL2G(server_clip_norm=0.5).mean_gradient(server, tables)
    assert torch.allclose(clipped, owners * 0.5 / owners.norm())
    zero, no_senders = FedL2G().mean_gradient(server, [])
    assert not zero.any() and not no_senders.any()


def test_the_server_steps_against_the_gradient() -> None:
    # One round from equal models: a doubled learning rate doubles the step.
    moves = []
    for server_lr in (0.1, 0.2):
        server = Payload(vectors_after(FedL2G(warmup=0, server_lr=server_lr)).server)
        moves.append(server.tensor("vectors") - server.tensor("start"))
    assert float(moves[0].norm()) > 0
    assert torch.allclose(moves[1], 2 * moves[0], atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_bytes_are_at_most_those_of_the_prototype_methods(space: Space) -> None:
    rival = {"logit": "feddistill", "feature": "fedproto"}[space]
    width, clients = {"logit": 4, "feature": 64}[space], len(CLASS_COUNTS)
    with ToyFederation(FedL2G, {}) as toy:
        config = toy.config(rounds=3)
        method = FedL2G(space=space, warmup=0)
        outcome = toy.run(config, method=method).checked()
        federation = toy.federation(config, method)
        theirs = toy.run(config, method=catalogue.make({"name": rival})).checked()
        for number, stats in enumerate(outcome.round_stats, 1):
            rows = 0
            for name in federation.names:
                client = federation.make_client(name)
                client.seed, client.round, client.step = federation.seed, number, "quiz_feedback"
                ((_, y),) = random_study_batches(client, study_quiz_split(client, method.quiz)[0], 1)
                rows += len(set(y.tolist()))
            assert stats.up == {"gradient": 4 * rows * width}
            assert stats.down == {"vectors": 4 * clients * 4 * width}
    for mine, other in zip(outcome.round_stats[1:], theirs.round_stats[1:], strict=True):
        assert sum(mine.up.values()) < sum(other.up.values())
        assert sum(mine.down.values()) <= sum(other.down.values())


@pytest.mark.parametrize("space", SPACES)
def test_with_weight_0_it_is_local_training_on_the_study_set(linears: Any, space: Space) -> None:
    method = FedL2G(space=space, weight=0.0, train_on_quiz=False, allow_degenerate=True)
    mine, theirs = client_of(linears, LABELS), client_of(linears, LABELS)
    method.train(mine, Payload({"vectors": random_vectors(3)}))
    theirs.fit(samples=study_quiz_split(theirs, 10)[0])
    assert all(torch.equal(t, weights_of(theirs.model)[n]) for n, t in weights_of(mine.model).items())


def test_a_client_with_one_sample_trains_and_sends_nothing(linears: Any) -> None:
    mine, theirs = client_of(linears, [1]), client_of(linears, [1])
    msg = Payload({"vectors": random_vectors(3)})
    FedL2G().train(mine, msg)
    theirs.fit()
    assert all(torch.equal(t, weights_of(theirs.model)[n]) for n, t in weights_of(mine.model).items())
    sent = FedL2G().quiz_feedback(mine, msg)["gradient"]
    assert isinstance(sent, ClassTable) and len(sent) == 0


def test_a_diverged_model_sends_nothing(linears: Any) -> None:
    def diverged() -> Any:
        client = linears().client("1", LABELS)
        with torch.no_grad():
            client.model.head.bias.fill_(float("inf"))
        return client

    makers = [lambda: linears().client("0", LABELS), diverged]
    outcome = run_rounds(InMemoryClients(FedL2G(warmup=0), makers)).checked()
    assert isinstance(outcome.server["vectors"], Tensor) and bool(torch.isfinite(outcome.server["vectors"]).all())
    assert outcome.server["updates"].tolist() == [1, 1, 1]  # type: ignore[union-attr]


def test_controls_keep_their_vectors_and_upload_nothing() -> None:
    learned = vectors_after(FedL2G(warmup=1), 2).server
    for guidance in ("frozen-random", "zero"):
        outcome = vectors_after(FedL2G(guidance=guidance), 2)
        start = learned["start"] if guidance == "frozen-random" else torch.zeros(4, 64)
        assert torch.equal(outcome.server["vectors"], start)  # type: ignore[arg-type]
        assert [stats.up for stats in outcome.round_stats] == [{}, {}]
        assert all(stats.task_loss() is not None for stats in outcome.round_stats)


def test_several_study_batches_are_averaged(linears: Any) -> None:
    client = client_of(linears, LABELS, settings={"batch_size": 4, "lr": 0.1})
    v, method = random_vectors(3), FedL2G(space="logit", study_batches=3)
    got = method.quiz_feedback(client, Payload({"vectors": v}))["gradient"]
    study, quiz = study_quiz_split(client, method.quiz)
    batches = random_study_batches(client, study, 3)
    quiz_batch = quiz.inputs.double() / 255, quiz.labels
    model = client.model.double()
    every = [gradient_by_autograd(model, "logit", v.double(), (x.double(), y), quiz_batch, 0.1) for x, y in batches]
    assert isinstance(got, ClassTable) and len(batches) == 3
    assert torch.allclose(got.values.double(), torch.stack(every).mean(0)[got.classes], rtol=1e-4, atol=1e-8)


def test_unlearned_vectors_can_be_masked(linears: Any) -> None:
    mine, theirs = client_of(linears, LABELS), client_of(linears, LABELS)
    down = {"vectors": random_vectors(3), "learned": torch.zeros(3)}
    FedL2G(mask_unlearned=True).train(mine, Payload(down))
    theirs.fit()
    assert all(torch.equal(t, weights_of(theirs.model)[n]) for n, t in weights_of(mine.model).items())
    FedL2G(mask_unlearned=True).train(mine, Payload({**down, "learned": torch.tensor([0.0, 2.0, 0.0])}))
    theirs.fit()
    moved = weights_of(theirs.model)["backbone.1.weight"]
    assert not torch.equal(weights_of(mine.model)["backbone.1.weight"], moved)
    vectors_after(FedL2G(mask_unlearned=True, warmup=1), 2)


def test_train_clip_norm_takes_precedence(linears: Any) -> None:
    far = Payload({"vectors": 1e6 * random_vectors(3)})
    for own, config, expected in ((0.5, None, 0.5), (0.5, 0.25, 0.25)):
        client = client_of(linears, LABELS, settings={"clip_norm": config})
        before = weights_of(client.model)
        FedL2G(clip_norm=own).train(client, far)
        moved = torch.cat([(t - before[n]).flatten() for n, t in weights_of(client.model).items()])
        assert float(moved.norm()) == pytest.approx(0.1 * expected, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": 0.0}, "method.weight is 0, which switches FedL2G off"),
        ({"server_lr": 0.0}, "method.server_lr is 0, which switches FedL2G off"),
        ({"quiz": 0}, "method.quiz is 0; expected a number of at least 1"),
        ({"warmup": -1}, "method.warmup is -1; expected a number of at least 0"),
        ({"study_batches": 0}, "method.study_batches is 0; expected a number of at least 1"),
    ],
)
def test_wrong_options_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        catalogue.make({"name": "fedl2g", **fields})


def test_features_of_different_widths_need_logits() -> None:
    models = {"group": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}]}
    with ToyFederation(FedL2G, {}) as toy:
        settings_ = toy.settings(CLASS_COUNTS[:2], models=models)
        with pytest.raises(
            InputError, match=r"needs one feature width, .*set models.feature_dim, or method.space: logit"
        ):
            toy.experiment(settings_)
    with ToyFederation(FedL2G, {"space": "logit", "warmup": 1}) as toy:
        toy.experiment(toy.settings(CLASS_COUNTS[:2], models=models))


def test_a_run_records_and_saves_the_vectors() -> None:
    with ToyFederation(FedL2G, {"warmup": 1}) as toy:
        folder = toy.new_folder()
        toy.experiment(toy.settings(), folder)
        events = [event for event in RunFolder(folder).events() if event.get("kind") == "guidance"]
        saved = load_file(str(next(folder.glob("artifacts/guiding_vectors-*.safetensors"))))
    assert [event["round"] for event in events] == [1, 2]
    assert all(event["moved"] > 0 and event["silent"] == [] and len(event["rows"]) == 4 for event in events)
    assert saved["vectors"].shape == (4, 64) and saved["classes"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("check", ["resumed_equals_uninterrupted", "independent_of_client_order"])
def test_guided_features_pass_the_battery(check: str) -> None:
    testing.run_check(check, FedL2G, {"space": "feature", "mask_unlearned": True, "study_batches": 2, "warmup": 2})


def test_masks_are_sent_in_the_warm_up_as_well() -> None:
    with ToyFederation(FedL2G, {"mask_unlearned": True, "warmup": 1}) as toy:
        outcome = toy.run()
    assert not any(stats.failures for stats in outcome.round_stats)


@pytest.mark.parametrize("name", ["clip_norm", "server_clip_norm", "server_lr", "weight"])
def test_negative_weights_and_norms_are_rejected(name: str) -> None:
    with pytest.raises(InputError, match=f"method.{name} is -1"):
        FedL2G(**{name: -1.0})  # type: ignore[arg-type]
