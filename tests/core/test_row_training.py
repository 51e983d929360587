"""Training at the server on rows of class tables, and optimiser state between rounds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed.core import rng
from polyfed.core.class_tables import ClassTable
from polyfed.core.row_training import fit_rows
from polyfed.training import TrainSettings
from polyfed.training.fit import make_optimizer
from polyfed.training.optimizer_state import load_tensors, state_tensors


def tables(sizes: list[int], width: int = 2) -> list[ClassTable]:
    stream = rng.generator("rows", *sizes)
    return [ClassTable(torch.arange(n), torch.rand(n, width, generator=stream)) for n in sizes]


def linear(inputs: int, outputs: int) -> nn.Linear:
    with rng.seeded("linear"):
        return nn.Linear(inputs, outputs)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 7), st.integers(1, 3))
def test_every_row_is_used_once_per_epoch(sizes: list[int], batch: int, epochs: int) -> None:
    given_tables = tables(sizes)
    before = [table.values.clone() for table in given_tables]
    observed: list[tuple[float, ...]] = []
    model = linear(2, 5)

    def loss(v: Tensor, c: Tensor) -> Tensor:
        assert len(v) <= batch
        observed.extend((*row, float(label)) for row, label in zip(v.tolist(), c.tolist(), strict=True))
        return model(v).sum()  # type: ignore[no-any-return]

    done = fit_rows([model], loss, given_tables, TrainSettings(epochs=epochs, batch_size=batch), rng.generator("s"))
    rows = [(*v, float(c)) for t in given_tables for v, c in zip(t.values.tolist(), t.classes.tolist(), strict=True)]
    assert sorted(observed) == sorted(rows * epochs)
    assert done.samples == epochs * sum(sizes)
    assert all(torch.equal(table.values, was) for table, was in zip(given_tables, before, strict=True))


def test_a_last_batch_of_one_is_left_out_for_batchnorm_only() -> None:
    norm = nn.Sequential(linear(2, 2), nn.BatchNorm1d(2))
    plain = linear(2, 2)
    for module, samples in ((norm, 4), (plain, 5)):
        done = fit_rows(
            [module],
            lambda v, c, m=module: m(v).sum(),
            tables([5]),
            TrainSettings(batch_size=2),
            rng.generator("s"),
        )
        assert done.samples == samples


def test_a_restored_optimiser_continues_identically() -> None:
    def one_step(model: nn.Linear, optimizer: torch.optim.Optimizer, number: int) -> None:
        x = torch.rand(4, 3, generator=rng.generator("x", number))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    adam = TrainSettings(optimizer="adam", lr=0.1)
    straight, stopped, forgetful = linear(3, 2), linear(3, 2), linear(3, 2)
    whole = make_optimizer(straight.parameters(), adam)
    load_tensors(whole, {})  # an empty memory is a new optimiser's
    for number in range(4):
        one_step(straight, whole, number)
    memory: dict[str, Tensor] = {}
    for number in range(4):
        again = make_optimizer(stopped.parameters(), adam)
        load_tensors(again, memory)
        kept = {name: tensor.clone() for name, tensor in memory.items()}
        one_step(stopped, again, number)
        assert all(torch.equal(memory[name], kept[name]) for name in kept)  # the inputs are not changed
        memory = state_tensors(again)
        one_step(forgetful, make_optimizer(forgetful.parameters(), adam), number)
    assert torch.equal(straight.weight, stopped.weight) and torch.equal(straight.bias, stopped.bias)
    assert not torch.allclose(straight.weight, forgetful.weight)
    assert memory["0.step"].item() == 4
