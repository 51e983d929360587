"""DFFKE: docking, the decoder, the exchange, the memory of past rounds, what travels, and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed import api, catalogue, testing
from polyfed.core import Client, Payload, Reply
from polyfed.core.client import copy_into, weights_of
from polyfed.core.codec import decode
from polyfed.core.rng import generator, seeded
from polyfed.errors import InputError
from polyfed.methods.dffke.docking import ClientSnapshot, fit_decoder, fit_docking
from polyfed.methods.dffke.embedding_decoder import Album, EmbeddingDecoder, decoder_skeleton
from polyfed.methods.dffke.exchange import Lesson, as_probabilities, divergence, learn
from polyfed.methods.dffke.method import DFFKE
from polyfed.methods.dffke.replay import ReplayIndex, newest, reviewed, reviewed_rows
from polyfed.models import build
from polyfed.testing.engine_wrappers import RecordingEngine, with_wrapped_steps
from polyfed.testing.rounds import InMemoryClients, Outcome, run_rounds
from polyfed.testing.toy_federation import BATCH, CLASS_COUNTS, CLASSES, ToyFederation
from polyfed.training import Samples, TrainSettings

WIDTH, CHANNELS = 16, 8
SMALL: dict[str, Any] = {
    "width": WIDTH,
    "decoder_channels": CHANNELS,
    "docking_steps": 5,
    "least_steps": 8,
    "decoder_epochs": 1,
    "exchange_epochs": 1,
    "max_local_epochs": 2,
    "batch": 8,
}
ROWS = [sum(share) for share in CLASS_COUNTS]
FLOAT = 4


def watched(
    fields: dict[str, Any] | None = None,
    shares: tuple[tuple[int, ...], ...] = CLASS_COUNTS,
    selected: Callable[[int], tuple[str, ...]] | None = None,
    **changed: Any,
) -> tuple[Outcome, RecordingEngine, dict[str, Any]]:
    """A run in the toy federation: how it ended, all its messages, and what clients remember."""
    recorder = RecordingEngine()
    with ToyFederation(DFFKE, {**SMALL, **(fields or {})}) as toy:
        outcome = toy.run(toy.config(shares, **changed), wrap=recorder, selected=selected).checked()
        return outcome, recorder, {name: outcome.client(name)["state"] for name in outcome.ledger.digests}


def sent(recorder: RecordingEngine, step: str, way: str = "down") -> dict[str, list[Payload]]:
    """Every message of a step by client, in the order of rounds."""
    found: dict[str, list[Payload]] = {}
    for seen in getattr(recorder, way):
        if step in seen.steps:
            fields = {name: value for frame in seen.frames for name, value in decode(frame).items()}
            found.setdefault(seen.client, []).append(Payload(fields))
    return found


def party(name: str, spec: str = "tiny-resnet") -> ClientSnapshot:
    with seeded("party", name):
        model = build(spec, shape=(1, 8, 8), classes=3)
        for _ in range(3):  # running statistics other than the initial ones
            model(torch.rand(8, 1, 8, 8))
        docking = nn.Linear(model.feature_dim, WIDTH)
    model.eval().requires_grad_(False)
    return ClientSnapshot(model.backbone, model.head, docking)


def bits(party: ClientSnapshot) -> list[Tensor]:
    return [t for module in (party.encoder, party.classifier) for t in weights_of(module).values()]


# 1, 2: the coordinator's training


def test_docking_aligns_clients_with_equal_encoders() -> None:
    # Both see the same three clusters: one head can serve both, far above the 1/3 of chance.
    stream = generator("clusters")
    centres = torch.randn(3, 6, generator=stream)
    labels = {name: torch.arange(30) % 3 for name in "ab"}
    rows = {name: centres[labels[name]] + 0.1 * torch.randn(30, 6, generator=stream) for name in "ab"}
    with seeded("docking"):
        parties = {name: ClientSnapshot(nn.Identity(), nn.Identity(), nn.Linear(6, WIDTH)) for name in "ab"}
        head = nn.Linear(WIDTH, 3)
    course = fit_docking(parties, rows, labels, head, iterations=60, lr=0.01, weight_decay=0.001)
    assert course[-1] < 0.2 * course[0]
    for name, one in parties.items():
        assert (head(one.docking(rows[name])).argmax(1) == labels[name]).float().mean() > 0.9


def test_docking_takes_soft_targets_and_ends_above_0() -> None:
    with seeded("soft"):
        parties = {"a": ClientSnapshot(nn.Identity(), nn.Identity(), nn.Linear(4, WIDTH))}
        head, rows, soft = nn.Linear(WIDTH, 3), {"a": torch.randn(12, 4)}, {"a": torch.randn(12, 3).softmax(1)}
    course = fit_docking(parties, rows, soft, head, iterations=40, lr=0.01, weight_decay=0.0)
    assert 0 <= course[-1] < course[0]


@pytest.mark.parametrize("discrepancy", ["none", "kl", "mae", "mse"])
def test_the_decoder_learns_and_nothing_else_does(discrepancy: Any) -> None:
    parties = {name: party(name) for name in "ab"}
    for one in parties.values():
        one.docking.requires_grad_(False)
    codes = {name: torch.randn(20, WIDTH, generator=generator("codes", name)) for name in "ab"}
    before = {name: [*bits(one), *weights_of(one.docking).values()] for name, one in parties.items()}
    with seeded("decoder"):
        decoder = EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS)
    streams = {name: generator("draw", name) for name in "ab"}
    course = fit_decoder(decoder, parties, codes, streams, iterations=40, batch=8, lr=0.01, discrepancy=discrepancy)
    assert 0 < sum(course[-5:]) < sum(course[:5])
    for name, one in parties.items():
        now = [*bits(one), *weights_of(one.docking).values()]
        assert all(torch.equal(was, is_) for was, is_ in zip(before[name], now, strict=True))
        assert all(p.grad is None for p in (*one.encoder.parameters(), *one.docking.parameters()))


def test_discrepancy_changes_the_decoder_but_does_not_hide_its_fidelity() -> None:
    # the first loss that is told is that of Eq. 12 alone, with every choice
    firsts, ends = [], []
    for kind in ("none", "kl", "mae", "mse"):
        parties = {name: party(name) for name in "ab"}
        codes = {name: torch.randn(8, WIDTH, generator=generator("codes", name)) for name in "ab"}
        with seeded("decoder"):
            decoder = EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS)
        streams = {name: generator("draw", name) for name in "ab"}
        one = {"a": codes["a"]}
        course = fit_decoder(decoder, parties, one, streams, iterations=2, batch=8, lr=0.01, discrepancy=kind)
        firsts.append(course[0])
        ends.append(weights_of(decoder)["grow.1.weight"])
    assert firsts == pytest.approx([firsts[0]] * 4)
    assert all(not torch.equal(ends[0], other) for other in ends[1:])


def test_a_single_code_is_left_out() -> None:
    with seeded("decoder"):
        decoder = EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS)
    before = weights_of(decoder)
    stream = {"a": generator("draw")}
    assert (
        fit_decoder(decoder, {"a": party("a")}, {"a": torch.zeros(1, WIDTH)}, stream, iterations=3, batch=8, lr=1.0)
        == []
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(decoder).items())


# 3: the loss


def distributions(rows: int, classes: int, stream: torch.Generator) -> Tensor:
    return torch.randn(rows, classes, generator=stream, dtype=torch.float64).softmax(1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 1000))
def test_forward_divergence(rows: int, classes: int, seed: int) -> None:
    # d/dz of mean_b sum_c T log(T / S) is (S - T) / B, because the T of a row sum to 1
    stream = generator("kl", seed)
    target = distributions(rows, classes, stream)
    z = torch.randn(rows, classes, generator=stream, dtype=torch.float64, requires_grad=True)
    divergence(z, target).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert torch.allclose(z.grad, (z.detach().softmax(1) - target) / rows, atol=1e-12)
    for direction in ("forward", "reverse", "jeffreys"):
        assert divergence(z, target, direction) >= 0
        assert float(divergence(target.log(), target, direction)) == pytest.approx(0, abs=1e-12)


def test_divergences_by_hand() -> None:
    # T = (3/4, 1/4), S = (1/2, 1/2): KL(T||S) = 3/4 log 3/2 + 1/4 log 1/2, KL(S||T) = 1/2 log 2/3 + 1/2 log 2
    target, z = torch.tensor([[0.75, 0.25]]), torch.zeros(1, 2)
    forward, reverse = 0.130812, 0.143841
    assert float(divergence(z, target)) == pytest.approx(forward, abs=1e-6)
    assert float(divergence(z, target, "reverse")) == pytest.approx(reverse, abs=1e-6)
    assert float(divergence(z, target, "jeffreys")) == pytest.approx(forward + reverse, abs=1e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse", "jeffreys"])
def test_a_teacher_that_is_certain_gives_finite_numbers(direction: Any) -> None:
    z = torch.tensor([[50.0, -50.0]], requires_grad=True)
    loss = divergence(z, torch.tensor([[0.0, 1.0]]), direction)
    loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and torch.isfinite(loss) and torch.isfinite(z.grad).all()


def test_one_step_of_a_student_by_hand() -> None:
    # Adam's first step is lr * sign of the gradient, where that is not tiny. Loss: KL, and the square to the code.
    with seeded("student"):
        encoder, head, docking = nn.Linear(3, 2), nn.Linear(2, 3), nn.Linear(2, 4)
        x, target, code = torch.randn(5, 3), torch.randn(5, 3).softmax(1), torch.randn(5, 4)
    before = [weights_of(m) for m in (encoder, head, docking)]
    f = encoder(x)
    (divergence(head(f), target) + F.mse_loss(docking(f), code)).backward()  # type: ignore[no-untyped-call]
    slopes = [
        {n: p.grad.clone() for n, p in m.named_parameters() if p.grad is not None} for m in (encoder, head, docking)
    ]
    settings_ = TrainSettings(optimizer="adam", lr=0.01)
    lessons = [Lesson(x, target, code)]
    assert learn(encoder, head, docking, lessons, settings_, direction="forward", frozen_norms=False) == 1
    for module, was, slope in zip((encoder, head, docking), before, slopes, strict=True):
        for name, tensor in weights_of(module).items():
            assert torch.allclose(tensor, was[name] - 0.01 * slope[name].sign(), atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_norms_of_a_student(frozen: bool) -> None:
    model = build("tiny-resnet", shape=(1, 8, 8), classes=3)
    statistics = {n: t for n, t in weights_of(model).items() if "running" in n}
    lessons = [Lesson(torch.rand(n, 1, 8, 8), torch.full((n, 3), 1 / 3)) for n in (4, 1)]
    steps = learn(
        model.backbone,
        model.head,
        None,
        lessons,
        TrainSettings(optimizer="adam", lr=0.01),
        direction="forward",
        frozen_norms=frozen,
    )
    assert steps == (2 if frozen else 1)  # a single image cannot be normalised by itself
    after = weights_of(model)
    assert all(torch.equal(after[name], tensor) == frozen for name, tensor in statistics.items())


# 4, 5: who learns from what


def test_nobody_learns_from_itself_and_answers_come_once() -> None:
    _, recorder, _ = watched(shares=CLASS_COUNTS[:3])
    answers = sent(recorder, "teach", "up")
    for student, messages in sent(recorder, "exchange").items():
        for number, message in enumerate(messages):
            told = message.weights("targets")
            assert sorted(told) == sorted({"0", "1", "2"} - {student})
            for teacher, target in told.items():
                assert torch.equal(target, answers[teacher][number].tensor("targets"))
                assert torch.allclose(target.sum(1), torch.ones(len(target)), atol=1e-5)


def test_a_limited_number_of_teachers() -> None:
    _, recorder, _ = watched({"teachers": 2})
    chosen = [tuple(m.weights("targets")) for messages in sent(recorder, "exchange").values() for m in messages]
    assert {len(teachers) for teachers in chosen} == {2} and len(set(chosen)) > 2


def test_alone_there_is_no_exchange() -> None:
    _, recorder, states = watched(shares=CLASS_COUNTS[:1])
    assert {seen.steps for seen in recorder.down} == {("warm_up", "embed"), ("train",)}
    assert states == {"0": {"warm": True}}


def test_targets_do_not_follow_the_students(linears: Any) -> None:
    # The lessons of a student are the same however far it has learned, and its messages stay as they were.
    method = DFFKE(**{**SMALL, "batch": 2})
    client: Client = linears().client("0", [0, 1, 2])
    client.round, client.step = 1, "exchange"
    with seeded("decoder"):
        decoder = EmbeddingDecoder(WIDTH, (1, 1, 4), CHANNELS)
    codes = {name: torch.randn(5, WIDTH, generator=generator(name)) for name in "01"}
    client.state["buffer"] = {"000001": {"decoder": weights_of(decoder), "codes": codes}}
    msg = Payload({"turns": 4, "targets": {"1": distributions(5, 3, generator("t")).float()}})
    first = list(method.lessons_of(client, msg))
    for parameter in client.model.parameters():
        parameter.data.add_(1.0)
    again = list(method.lessons_of(client, msg))
    assert len(first) == 4
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.target, b.target)
    seen = torch.cat([lesson.target for lesson in first[:3]])  # batches of 2, 2 and 1: every row once
    assert sorted(seen.tolist()) == sorted(msg.weights("targets")["1"].tolist())


# 6, 7: memory


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.integers(1, 9).map(lambda n: f"{n:06d}"), st.integers(1, 20), min_size=1, max_size=5),
    st.integers(0, 30),
    st.integers(1, 7),
)
def test_review_is_even_and_the_same_for_all(sizes: dict[str, int], batches: int, batch: int) -> None:
    def stream(name: str) -> torch.Generator:
        return generator("review", name)

    taken = reviewed(sizes, batches, batch, stream)
    backwards = reviewed(dict(reversed(sizes.items())), batches, batch, stream)
    assert [(name, rows.tolist()) for name, rows in taken] == [(name, rows.tolist()) for name, rows in backwards]
    counts = [sum(name == key for name, _ in taken) for key in sizes]
    assert len(taken) == batches and max(counts) - min(counts) <= 1
    assert sum(len(rows) for _, rows in taken) == reviewed_rows(sizes, batches, batch)
    for name, rows in taken:
        assert len(set(rows.tolist())) == len(rows) == min(batch, sizes[name]) and int(rows.max()) < sizes[name]


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, 50)), st.one_of(st.none(), st.integers(0, 8)))
def test_the_oldest_go_first(rounds: set[int], limit: int | None) -> None:
    kept = newest({f"{n:06d}": n for n in rounds}, limit)
    assert list(kept.values()) == sorted(rounds)[max(0, len(rounds) - limit) if limit is not None else 0 :]


def test_nothing_is_reviewed_where_nothing_is_past() -> None:
    assert reviewed({}, 5, 8, lambda name: generator(name)) == [] and reviewed_rows({}, 5, 8) == 0


def test_the_shelf_knows_who_lacks_what() -> None:
    shelf = ReplayIndex(limit=2)
    for number, there in ((1, "ab"), (2, "b"), (3, "ab")):
        name = f"{number:06d}"
        for client in there:
            shelf.took(client, [*shelf.owed(client), name])
        shelf.put(name, dict.fromkeys(there, 10 * number))
    assert shelf.held == {"a": ["000002", "000003"], "b": ["000002", "000003"]}  # a got round 2 when it came back
    assert shelf.plan("a") == {"000003": 30} and shelf.plan("b") == {"000002": 20, "000003": 30}
    assert shelf.wanted("abc") == ["000002", "000003"]  # c was never there
    assert "000001" not in shelf.sizes
    again = ReplayIndex.of(shelf.state(), 2)
    assert again == shelf


@pytest.mark.parametrize(("limit", "kept"), [(None, [1, 2, 3]), (0, []), (1, [3]), (2, [2, 3])])
def test_a_client_keeps_so_many_rounds(limit: int | None, kept: list[int]) -> None:
    outcome, _, states = watched({"buffer": limit}, CLASS_COUNTS[:2], rounds=3)
    assert {name: list(state["buffer"]) for name, state in states.items()} == {
        name: [f"{n:06d}" for n in kept] for name in "01"
    }
    assert outcome.server["archive"] == {}  # nobody lacks anything


def test_images_are_made_again_bit_by_bit() -> None:
    with seeded("decoder"):
        decoder = EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS)
        decoder(torch.randn(9, WIDTH))
    weights, codes = weights_of(decoder), {"a": torch.randn(12, WIDTH, generator=generator("codes"))}
    rows = torch.tensor([3, 1, 7])

    def made() -> Tensor:
        skeleton = decoder_skeleton(WIDTH, (1, 8, 8), CHANNELS)
        return Album(skeleton, {"000001": (weights, codes)}).images("000001", "a", rows)

    assert torch.equal(made(), made())
    with torch.no_grad():
        assert torch.allclose(made(), decoder.eval()(codes["a"][rows]), atol=1e-5)
    assert all(torch.equal(weights_of(decoder)[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("sync", ["full", "lazy"])
def test_a_client_that_was_away(sync: str) -> None:
    # Round 1 without client 2, round 2 with all: `full` sends it round 1, `lazy` does not.
    turns = {1: ("0", "1"), 2: ("0", "1", "2")}
    outcome, recorder, states = watched({"buffer_sync": sync}, CLASS_COUNTS[:3], lambda number: turns[number])
    came = sent(recorder, "teach")["2"][0]
    if sync == "full":
        first = sent(recorder, "teach")["0"][0]
        missing: Any = came["missing"]
        entry = missing["000001"]
        assert all(torch.equal(entry["codes"][n], rows) for n, rows in first.weights("codes").items())
        size = FLOAT * WIDTH * (ROWS[0] + ROWS[1]) + decoder_bytes()
        assert outcome.round_stats[1].down["missing"] == size
    else:
        assert "missing" not in came
    assert list(states["2"]["buffer"]) == (["000001", "000002"] if sync == "full" else ["000002"])


# 8: bytes


def decoder_bytes() -> int:
    with torch.device("meta"):
        state = EmbeddingDecoder(WIDTH, (1, 8, 8), CHANNELS).state_dict()
    return sum(t.numel() * t.element_size() for t in state.values())


def test_the_decoder_has_the_printed_size() -> None:
    with torch.device("meta"):
        decoder = EmbeddingDecoder(512, (3, 32, 32))
        large = EmbeddingDecoder(512, (3, 64, 64))
    assert sum(p.numel() for p in decoder.parameters()) == 4_426_051
    assert sum(p.numel() for p in large.parameters()) == 17_033_539


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 1, 4), (1, 28, 28)])
def test_images_have_the_shape_and_about_the_range_of_data(shape: tuple[int, int, int]) -> None:
    with seeded("decoder"):
        images = EmbeddingDecoder(WIDTH, shape, CHANNELS)(torch.randn(40, WIDTH)).detach()
    assert images.shape == (40, *shape)
    assert float(images.mean()) == pytest.approx(0.5, abs=0.01) and float(images.std()) == pytest.approx(
        0.25, abs=0.01
    )


@pytest.mark.parametrize("codes", ["off", "on"])
def test_bytes(codes: str) -> None:
    # up:   |theta_k| + N_k d + N_k labels + N_k C, and n_mem C from round 2
    # down: |Dec| + (d + 1) h + sum_i N_i h + sum_{i != k} (N_i + n_mem) C
    # The codes that come down are everybody's: a client's own may have been noised on their way up.
    # With the loss on embeddings, h numbers more per answer, and the trained docking layer goes up.
    outcome, recorder, _ = watched({"fke_embedding_loss": codes}, rounds=2)
    features, clients, rows = 64, len(CLASS_COUNTS), sum(ROWS)
    models = sum(
        t.numel() * t.element_size()
        for messages in sent(recorder, "embed", "up").values()
        for t in messages[0].weights("model").values()
    )
    # I = max(8 / 2 / 4, 1 * ceil(12 / 8)) turns, of one batch of 8 from the only past round
    turns = 2
    memory = FLOAT * turns * 8 * clients
    docking = FLOAT * (features + 1) * WIDTH * clients
    first, second = outcome.round_stats
    up = {"model": models, "embeddings": FLOAT * rows * features, "labels": FLOAT * rows}
    up |= {
        "targets": FLOAT * rows * CLASSES,
        **dict.fromkeys(("epochs", "accuracy"), 0),
    }
    down = {"decoder": decoder_bytes() * clients, "docking": docking, "codes": FLOAT * rows * WIDTH * clients}
    down |= {"targets": FLOAT * rows * CLASSES * (clients - 1), "turns": 0, "review": 0}
    extra_up, extra_down = {"memory": memory * CLASSES}, {"memory": memory * CLASSES * (clients - 1)}
    if codes == "on":
        up["targets_codes"] = FLOAT * rows * WIDTH
        down["targets_codes"] = FLOAT * rows * WIDTH * (clients - 1)
        extra_up |= {"memory_codes": memory * WIDTH, "docking": docking}
        extra_down |= {"memory_codes": memory * WIDTH * (clients - 1)}
    assert first.up == up and first.down == down
    assert second.up == up | extra_up and second.down == down | extra_down


# 9, 10: what noise is for


@pytest.mark.parametrize("scope", ["release", "docking_only"])
def test_codes_come_from_what_was_uploaded(scope: str) -> None:
    # What leaves a client is noised on its way: codes from clean samples are others than those from the upload.
    privacy = {"embeddings": {"clip": 5.0, "noise": 2.0}}
    _, recorder, _ = watched({"dp_scope": scope}, rounds=1, privacy=privacy)
    uploaded = sent(recorder, "embed", "up")
    for name, messages in sent(recorder, "teach").items():
        docking = nn.Linear(64, WIDTH)
        copy_into(docking, messages[0].weights("docking"))
        with torch.no_grad():
            ours = docking(uploaded[name][0].tensor("embeddings"))
        assert torch.allclose(ours, messages[0].weights("codes")[name], atol=1e-4) == (scope == "release")


def test_samples_are_not_looked_at_between_upload_and_local_training() -> None:
    def blind(name: str, client: Client, msg: Payload, body: Any) -> Reply | None:
        if name not in ("teach", "exchange"):
            return body()  # type: ignore[no-any-return]
        own = client.train
        client.train = Samples(torch.zeros_like(own.images), torch.zeros_like(own.labels))
        try:
            return body()  # type: ignore[no-any-return]
        finally:
            client.train = own

    with ToyFederation(DFFKE, SMALL) as toy:
        config = toy.config(CLASS_COUNTS[:2])
        ours = toy.run(config, method=with_wrapped_steps(DFFKE, blind)(**SMALL)).checked()
        assert ours.hash == toy.run(config).checked().hash


# 12, 13, 14


def test_encoders_of_different_widths_share_one_decoder() -> None:
    models = {"group": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}]}
    _, recorder, states = watched(models=models)
    shapes = {name: m[0].weights("docking")["weight"].shape for name, m in sent(recorder, "teach").items()}
    assert shapes == {name: (WIDTH, 64 if int(name) % 2 == 0 else 32) for name in "01234"}
    assert len(states["0"]["buffer"]) == 2


def test_a_public_set_takes_the_place_of_synthetic_images() -> None:
    outcome, recorder, _ = watched({"transfer": "dataset", "public": "digits", "public_samples": 12})
    assert {seen.steps for seen in recorder.up} == {("warm_up", "teach"), ("exchange",), ("train",)}
    first, second = outcome.round_stats
    assert first.up == second.up == {"targets": FLOAT * 12 * CLASSES * 5, "epochs": 0, "accuracy": 0}
    answers = {"targets": FLOAT * 12 * CLASSES * 5 * 4, "turns": 0}
    assert first.down == {**answers, "public": 12 * 8 * 8 * 5}  # once, as bytes
    assert second.down == answers


def test_lessons_on_a_public_set_are_its_images(linears: Any) -> None:
    method = DFFKE(**{**SMALL, "batch": 2, "transfer": "dataset", "public": "digits"})
    client: Client = linears().client("0", [0, 1, 2])
    client.round, client.step = 1, "exchange"
    client.state["public"] = torch.arange(16, dtype=torch.uint8).reshape(4, 1, 1, 4)
    told = distributions(4, 3, generator("t")).float()
    for lesson in method.lessons_of(client, Payload({"turns": 2, "targets": {"1": told}})):
        for image, target in zip(lesson.images, lesson.target, strict=True):
            row = round(float(image[0, 0, 0]) * 255) // 4
            assert torch.equal(target, told[row])
            assert torch.allclose(image.flatten(), torch.arange(4 * row, 4 * row + 4) / 255)


OPTIONS: list[dict[str, Any]] = [
    {"buffer": 1, "fke_embedding_loss": "on", "kl": "reverse", "fke_bn": "frozen"},
    {"docking_target": "soft", "decoder_init": "warm", "discrepancy": "kl", "dp_scope": "docking_only"},
    {"transfer": "dataset", "public": "digits", "public_samples": 20, "teachers": 2, "kl": "jeffreys"},
]


@pytest.mark.parametrize(
    ("check", "fields"),
    [
        ("stopped_and_resumed", OPTIONS[0]),
        ("failing_clients_survived", OPTIONS[0]),
        ("failing_clients_survived", OPTIONS[1]),
        ("wrong_messages_refused_by_name", OPTIONS[1]),
        ("stopped_and_resumed", OPTIONS[2]),
        ("failing_clients_survived", OPTIONS[2]),
    ],
)
def test_options_pass_too(check: str, fields: dict[str, Any]) -> None:
    testing.run_check(check, DFFKE, {**SMALL, **fields})


# local training


def goal(linears: Any, **fields: Any) -> tuple[Client, int, float]:
    client: Client = linears(settings={"batch_size": 4, "lr": 0.5}).client("0", [0, 1, 2, 0, 1, 2])
    client.round, client.step = 1, "train"
    return client, *DFFKE(**fields).train_to_goal(client)


def test_local_training_stops_at_the_goal(linears: Any) -> None:
    client, epochs, accuracy = goal(linears, tau=1.0, max_local_epochs=500)
    assert accuracy == 1.0 and 0 < epochs < 500
    again = DFFKE(tau=1.0).train_to_goal(client)
    assert again == (0, 1.0)  # it is there already


def test_local_training_stops_in_any_case(linears: Any) -> None:
    _, epochs, accuracy = goal(linears, tau=1.0, max_local_epochs=1)
    assert epochs == 1 and accuracy < 1.0


def test_synthetic_images_are_kept_for_looking_at(tmp_path: Any) -> None:
    from safetensors.torch import load_file

    with ToyFederation(DFFKE, SMALL) as toy:
        toy.experiment(toy.settings(rounds=1), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "artifacts" / "synthetic-000001.safetensors")
    assert kept["images"].shape == (4 * CLASSES, 1, 8, 8) and kept["labels"].tolist() == sorted([0, 1, 2, 3] * 4)
    assert float(kept["images"].min()) >= 0 and float(kept["images"].max()) <= 1


def test_exchange_teaches_classes_that_a_client_does_not_have() -> None:
    # Client 0 knows classes 0 and 1 only; after two rounds of exchange it is right about others.
    shares = ((15, 15, 0, 0), (0, 15, 15, 0), (0, 0, 15, 15))
    fields = {**SMALL, "width": 32, "decoder_channels": 16, "least_steps": 80, "max_local_epochs": 15}
    changed = {"rounds": 2, "train": {"batch_size": BATCH, "lr": 0.1}, "models": {"group": ["tiny-mlp"]}}
    accuracy = {}
    for name, chosen in (("dffke", fields), ("nobody", {**fields, "exchange_epochs": 0, "least_steps": 0})):
        with ToyFederation(DFFKE, chosen) as toy:
            result = toy.experiment(toy.settings(shares, **changed))
        accuracy[name] = result["accuracy"]["global"]["final"]
    assert accuracy["dffke"] > accuracy["nobody"] + 0.1


# refusals


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tau": 0.0}, r"^method.tau is 0.0; expected a number above 0 and at most 1"),
        ({"tau": 1.5}, r"^method.tau is 1.5"),
        ({"teachers": 0}, r"^method.teachers is 0; expected a number of at least 1$"),
        ({"buffer": -1}, r"^method.buffer is -1; expected a number of at least 0$"),
        ({"lr": 0.0}, r"^method.lr is 0.0; expected a number above 0"),
        ({"transfer": "dataset", "public": "digits", "fke_embedding_loss": "on"}, r"no common space$"),
        ({"transfer": "dataset"}, "needs method.public: the name of a dataset"),
        ({"kl": "backward"}, r"^method.kl is 'backward'"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        catalogue.make({"name": "dffke", **fields})


def test_an_unknown_public_set_is_refused_before_anything_runs() -> None:
    with ToyFederation(DFFKE, {"transfer": "dataset", "public": "digitz"}) as toy:
        folder = toy.new_folder()
        with pytest.raises(InputError, match="digitz"):
            toy.experiment(toy.settings(), folder)
        assert not folder.exists()


def test_one_client_with_one_sample_takes_part(linears: Any) -> None:
    makers = linears(norm=True).several([0], [0, 1, 2, 1], [2, 2, 1])
    outcome = run_rounds(InMemoryClients(DFFKE(**SMALL), makers), 2).checked()
    assert set(outcome.ledger.digests) == {"0", "1", "2"}


# noise on what is exchanged


def test_the_clients_own_dataset_is_no_public_set() -> None:
    method = {"name": "dffke", "transfer": "dataset", "public": "digits"}
    with pytest.raises(InputError, match=r"method\.public is 'digits', which is the clients' own data"):
        api.run("quickstart", method=method, clients=2, rounds=1)


def test_noised_answers_are_probabilities_again() -> None:
    rows = torch.tensor([[0.2, 0.8], [-0.5, 0.5], [1.0, 3.0], [-1.0, -2.0]])
    made = as_probabilities(rows)
    assert torch.equal(made[0], rows[0])  # as it was, bit by bit
    assert torch.allclose(made[1:], torch.tensor([[0.0, 1.0], [0.25, 0.75], [0.5, 0.5]]), atol=1e-6)
    loss = divergence(torch.zeros(4, 2), made, "jeffreys")
    assert bool(torch.isfinite(loss)) and float(loss) > 0
    sure = nn.Linear(5, 3)(torch.ones(2, 5)).mul(100).softmax(1)
    assert torch.equal(as_probabilities(sure), sure)


@pytest.mark.parametrize("kl", ["forward", "jeffreys"])
def test_a_run_with_noise_on_everything_that_is_exchanged(kl: str) -> None:
    """Answers on synthetic images go as one message; the losses of the exchange stay numbers."""
    fields = {**SMALL, "docking_target": "soft", "kl": kl}
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
