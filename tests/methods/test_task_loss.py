"""Training curves show the task loss only, without the terms that a method adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small import SMALL
from torch import nn

from polyfed import catalogue
from polyfed.comparison.losses import loss_increase
from polyfed.core import client as client_room
from polyfed.models.split import SplitModel
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation
from polyfed.training import Fit, Samples, fit

# Methods whose task is itself another than the cross-entropy of the client's model. Whoever is not here and adds to
# the cross-entropy gives what is added as a further term.
OTHER_TASK = {
    "fedktl": "cross-entropy over margins on a simplex",
    "fedktl-lite": "cross-entropy over margins on a simplex",
    "pfedafm": "cross-entropy of the mixture of two extractors",
    "scalefl": "cross-entropy of all exits, with absent classes masked",
    "per-fedavg": "cross-entropy after a further step",
    **dict.fromkeys(("heterofl", "fedrolex", "fed-dropout"), "cross-entropy of logits with absent classes masked"),
}
METHODS = [name for name in catalogue.methods() if name not in OTHER_TASK]
LITTLE_WORK: dict[str, dict[str, Any]] = {
    **SMALL,
    "dffke": {"width": 16, "decoder_channels": 8, "least_steps": 8, "max_local_epochs": 1},  # trains in every round
}


@pytest.mark.parametrize("name", METHODS)
def test_the_first_term_is_the_cross_entropy_of_the_clients_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[tuple[float, float]] = []

    def watched(
        modules: Iterable[nn.Module], loss: Callable[..., Any], samples: Samples, *rest: Any, **more: Any
    ) -> Fit:
        modules = list(modules)
        model = modules[0]
        if isinstance(model, SplitModel) and len(samples) > 1:
            x, y = next(samples.batches(len(samples)))
            model.train()
            draw = more.get("draw")
            terms = loss(x, y, *(draw(len(y)) if draw else ()))
            task = terms if isinstance(terms, torch.Tensor) else terms[0]
            observed.append((float(task.detach()), float(F.cross_entropy(model(x), y).detach())))
        return fit(modules, loss, samples, *rest, **more)

    monkeypatch.setattr(client_room, "fit", watched)
    with ToyFederation(catalogue.load(name), LITTLE_WORK.get(name, {})) as toy:
        outcome = toy.run(toy.config(CLASS_COUNTS[:2])).checked()
    assert len(observed) >= 2
    for task, plain in observed:
        assert task == pytest.approx(plain, rel=1e-5)
    assert all(stats.task_loss() is not None for stats in outcome.round_stats)


def test_other_trained_modules_are_not_in_the_curve(linears: Any) -> None:
    client = linears().client("0", [0, 1, 2, 0, 1, 2])
    other = linears().model("another")
    client.fit()
    client.fit(lambda x, y: F.cross_entropy(other(x), y), modules=[other])
    client.fit(modules=[other], parameters=[*other.parameters(), *client.model.head.parameters()])
    assert [done.aside for done in client.fits] == [False, True, False]


@pytest.mark.parametrize("name", ["fedtype", "pfedafm"])
def test_one_of_two_fits_per_round_is_recorded(name: str) -> None:
    with ToyFederation(catalogue.load(name), {}) as toy:
        stats = toy.run(toy.config(rounds=1)).checked().round_stats[0]
    assert len(stats.trained) == len(CLASS_COUNTS)  # one per client, though each trained two models


def test_loss_increase_by_hand() -> None:
    assert loss_increase([None, 2.0, 1.5, 1.75, None, 1.0, 1.25]) == [None, 0, 0, 0.25, None, 0, 0.25]
    assert loss_increase([]) == []


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=20))
@settings(max_examples=25, deadline=None)
def test_loss_increase_is_never_negative_and_0_at_the_minimum(losses: list[float | None]) -> None:
    increase = loss_increase(losses)
    assert [i is None for i in increase] == [v is None for v in losses]
    known = [v for v in losses if v is not None]
    assert all(i >= 0 for i in increase if i is not None)
    if known:
        assert increase[losses.index(min(known))] == 0
