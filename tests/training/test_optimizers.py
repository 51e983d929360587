"""The optimisers without torch's compiler take the same steps as those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.training import optimizers


def trained(kind: type[torch.optim.Optimizer], settings: dict[str, Any], *, through_state: bool) -> list[Tensor]:
    """Return the parameters after some steps; `through_state` saves and loads the optimiser's state half-way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(8, 5), torch.randint(3, (8,))
    optimizer = kind(model.parameters(), **settings)
    for number in range(6):
        if number == 3 and through_state:
            state = optimizer.state_dict()
            optimizer = kind(model.parameters(), **settings)
            optimizer.load_state_dict(state)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"lr": 0.1, "fused": True}),
        ("SGD", {"lr": 0.1, "weight_decay": 0.01, "maximize": True, "fused": True}),
        ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "fused": True}),
        ("Adam", {"lr": 0.01, "fused": True}),
        ("Adam", {"lr": 0.01, "weight_decay": 0.01, "betas": (0.8, 0.99), "maximize": True, "fused": True}),
        ("Adam", {"lr": 0.01, "amsgrad": True, "fused": True}),
        ("Adam", {"lr": 0.01, "weight_decay": 0.01}),
    ],
)
@pytest.mark.parametrize("through_state", [False, True])
def test_steps_are_bit_identical_to_torch(name: str, settings: dict[str, Any], through_state: bool) -> None:
    ours = trained(getattr(optimizers, name), settings, through_state=through_state)
    theirs = trained(getattr(torch.optim, name), settings, through_state=through_state)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_optimiser_itself_needs_no_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = optimizers.SGD([parameter], lr=0.5)
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert parameter.requires_grad and parameter.grad_fn is None and torch.is_grad_enabled()


@pytest.mark.parametrize("kind", [torch.optim.SGD, optimizers.SGD])
def test_parameters_of_two_types_and_without_gradient(kind: type[torch.optim.SGD]) -> None:
    single, double, untrained = (nn.Parameter(torch.ones(3, dtype=t)) for t in (torch.float32, torch.float64, None))
    single.grad, double.grad = torch.full((3,), 0.5), torch.full((3,), 0.25, dtype=torch.float64)
    kind([single, double, untrained], lr=0.5, fused=True).step()
    assert single.tolist() == [0.75] * 3 and double.tolist() == [0.875] * 3 and untrained.tolist() == [1.0] * 3


@pytest.mark.parametrize("kind", [optimizers.SGD, optimizers.Adam])
def test_hooks_are_called(kind: type[torch.optim.Optimizer]) -> None:
    parameter, calls = nn.Parameter(torch.ones(2)), []
    optimizer = kind([parameter], lr=0.5, fused=True)  # type: ignore[call-arg]
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    parameter.grad = torch.ones(2)
    optimizer.step()
    optimizer.step()
    assert calls == ["before", "after"] * 2


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (torch.float32, torch.float64)])
def test_groups_whose_parameters_take_turns(name: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    results = []
    for kind in (getattr(torch.optim, name), getattr(optimizers, name)):
        first, second, third = (nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (types[0], *types))
        optimizer = kind([{"params": [first]}, {"params": [second, third], "lr": 0.1}], lr=0.5, fused=True)
        for number in range(6):
            for parameter, skipped in ((first, (0, 3)), (second, (1, 2)), (third, (0, 1, 5))):
                parameter.grad = None if number in skipped else torch.full_like(parameter, 0.5 + number)
            optimizer.step()
        results.append([first, second, third])
    assert all(torch.equal(a, b) and a[0] != 1 for a, b in zip(*results, strict=True))
