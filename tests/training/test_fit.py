"""The one training loop: equal to a loop written by hand, and right at its edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import rng
from polyfed.training import Samples, TrainSettings, fit, score
from polyfed.training.fit import backward
from polyfed.training.samples import model_inputs


def samples(n: int) -> Samples:
    stream = rng.generator("pictures")
    return Samples(
        torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8, generator=stream),
        torch.randint(0, 3, (n,), generator=stream),
    )


def network(*, norm: bool = False) -> nn.Sequential:
    with rng.seeded("network"):
        parts: list[nn.Module] = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
        if norm:
            parts.insert(1, nn.BatchNorm2d(4))
        return nn.Sequential(*parts)


def train(model: nn.Module, data: Samples, **changed: Any) -> Any:
    settings = TrainSettings(**{"batch_size": 4, "lr": 0.1, **changed})
    return fit([model], lambda x, y: F.cross_entropy(model(x), y), data, settings, rng.generator("order"))


def weights(model: nn.Module) -> list[Tensor]:
    return [t.clone() for t in model.state_dict().values()]


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("changed", "make"),
    [
        ({}, lambda p: torch.optim.SGD(p, lr=0.1, fused=True)),
        (
            {"momentum": 0.9, "weight_decay": 0.01},
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
        ),
        ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01, fused=True)),
        ({"clip_norm": 0.05}, lambda p: torch.optim.SGD(p, lr=0.1, fused=True)),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_equals_a_loop_by_hand(changed: dict[str, Any], make: Any, norm: bool) -> None:
    data, ours, theirs = samples(10), network(norm=norm), network(norm=norm)
    done = train(ours, data, epochs=2, **changed)
    optimizer = make(theirs.parameters())
    shuffle = rng.generator("order")
    total, theirs = 0.0, theirs.train()
    for _ in range(2):
        order = torch.randperm(10, generator=shuffle)
        for at in (order[:4], order[4:8], order[8:]):
            x = model_inputs(data.inputs[at])
            optimizer.zero_grad()
            loss = F.cross_entropy(theirs(x), data.labels[at])
            loss.backward()  # type: ignore[no-untyped-call]
            if "clip_norm" in changed:
                nn.utils.clip_grad_norm_(theirs.parameters(), changed["clip_norm"])
            optimizer.step()
            total += loss.item() * len(at)
    assert equal(ours, theirs)
    assert (done.steps, done.samples) == (6, 20)
    assert done.loss == pytest.approx(total / 20, rel=1e-6)


def test_terms_are_added_and_the_task_alone_is_reported() -> None:
    data = samples(8)
    alone, doubled = network(), network()
    first = train(alone, data, lr=0.2, batch_size=8)

    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        task = F.cross_entropy(doubled(x), y)
        return task, task

    # two equal terms at half the rate are one term at the full rate, and a power of two costs no bits
    second = fit([doubled], twice, data, TrainSettings(batch_size=8, lr=0.1), rng.generator("order"))
    assert equal(alone, doubled)
    assert first.loss == second.loss


def test_steps_go_round_the_data_and_stop() -> None:
    data = samples(10)  # three batches of four, four and two
    by_steps, by_epochs = network(), network()
    assert train(by_steps, data, steps=6).steps == 6
    train(by_epochs, data, epochs=2)
    assert equal(by_steps, by_epochs)
    seven = train(network(), data, steps=7)
    assert (seven.steps, seven.samples) == (7, 24)
    assert train(network(), data, steps=2, epochs=50).samples == 8


@pytest.mark.parametrize(
    ("n", "norm", "observed"),
    [(9, False, 9), (9, True, 8), (8, True, 8), (10, True, 10), (1, False, 1), (1, True, 0), (5, True, 4)],
)
def test_a_single_last_sample_is_dropped_only_for_batchnorm(n: int, norm: bool, observed: int) -> None:
    assert train(network(norm=norm), samples(n)).samples == observed


def test_a_dropped_sample_has_its_turn_in_another_epoch() -> None:
    data = Samples(torch.zeros(9, 1, 4, 4, dtype=torch.uint8), torch.arange(9))
    shuffle = rng.generator("order")
    taken = {
        int(label)
        for _ in range(20)
        for _, labels in data.batches(4, shuffle=shuffle, drop_single=True)
        for label in labels
    }
    assert taken == set(range(9))


@pytest.mark.parametrize("changed", [{"epochs": 0}, {"steps": 5, "n": 0}, {"n": 0}])
def test_nothing_to_do_changes_nothing(changed: dict[str, Any]) -> None:
    model = network()
    before = weights(model)
    given = dict(changed)
    done = train(model, samples(int(given.pop("n", 8))), **given)
    assert (done.steps, done.samples) == (0, 0)
    assert math.isnan(done.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_only_chosen_parameters_move_and_no_gradient_is_left() -> None:
    model = network()
    before = weights(model)
    settings = TrainSettings(batch_size=4, lr=0.1)
    head = model[-1]
    fit(
        [model],
        lambda x, y: F.cross_entropy(model(x), y),
        samples(8),
        settings,
        rng.generator(1),
        parameters=head.parameters(),
    )
    after = weights(model)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
    assert not torch.equal(before[2], after[2])
    assert all(p.grad is None for p in head.parameters())


def test_an_empty_choice_of_parameters_is_not_all_of_them() -> None:
    model = network()
    before = weights(model)
    with pytest.raises(ValueError, match="empty parameter list"):
        fit([model], lambda x, y: model(x).sum(), samples(4), TrainSettings(), rng.generator(1), parameters=[])
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_adjust_sees_the_gradients_before_the_step() -> None:
    model = network()
    before = weights(model)

    def silence() -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.zero_()

    fit(
        [model],
        lambda x, y: F.cross_entropy(model(x), y),
        samples(8),
        TrainSettings(),
        rng.generator(1),
        adjust=silence,
    )
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_pixels_become_floats_in_zero_to_one() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    assert model_inputs(pixels).flatten().tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert pixels.flatten().tolist() == [0, 51, 255]


def test_score_counts_right_answers() -> None:
    data = Samples(torch.zeros(1000, 1, 2, 2, dtype=torch.uint8), torch.arange(1000) % 4)
    received = score(lambda x: torch.tensor([0.0, 1.0, 0.5, -1.0]).expand(len(x), 4), data)
    assert (received.correct, received.total, received.accuracy) == (250, 1000, 0.25)
    assert math.isnan(score(lambda x: x, Samples(data.inputs[:0], data.labels[:0])).accuracy)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_are_those_of_torch(kind: torch.dtype) -> None:
    ours, theirs = network(norm=True).to(kind), network(norm=True).to(kind)
    inputs, labels = model_inputs(samples(6).inputs).to(kind), samples(6).labels
    for _ in range(2):  # the second time, gradients are added
        backward(F.cross_entropy(ours(inputs), labels))
        F.cross_entropy(theirs(inputs), labels).backward()  # type: ignore[no-untyped-call]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None and torch.equal(mine.grad, other.grad)


def test_a_loss_that_is_no_number_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="scalar outputs"):
        backward(network()(model_inputs(samples(2).inputs)).square())


class FrozenPart(nn.BatchNorm2d):
    """Stays in evaluation mode, as pretrained layers often do."""

    def train(self, mode: bool = True) -> FrozenPart:
        return super().train(False)


def test_training_sets_the_mode_of_all_parts_but_those_that_decide_themselves() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), FrozenPart(4), nn.Flatten(), nn.Dropout(), nn.Linear(16, 3))
    model[3].eval()
    train(model, samples(8))
    assert [part.training for part in model] == [True, False, True, True, True]
    assert not model.state_dict()["1.running_mean"].any()
