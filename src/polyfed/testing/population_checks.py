"""Checks with unusual clients: one class, one sample, a last batch of one, one client, absent or failing ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.testing.battery import check
from polyfed.testing.engine_wrappers import FAULTS, FaultyEngine
from polyfed.testing.rounds import Outcome
from polyfed.testing.toy_federation import BATCH, CLASS_COUNTS, ToyFederation


@check
def client_with_one_class(toy: ToyFederation) -> None:
    """A client with a single class can take part."""
    _check_finite(toy.run(toy.config(((9, 0, 0, 0), *CLASS_COUNTS[1:3])), evaluate=True).checked())


@check
def client_with_one_sample(toy: ToyFederation) -> None:
    """A client with one sample can take part, although BatchNorm cannot be trained on it."""
    _check_finite(toy.run(toy.config(((0, 1, 0, 0), (0, 0, 0, 1), CLASS_COUNTS[2])), evaluate=True).checked())


@check
def odd_last_batch(toy: ToyFederation) -> None:
    """Every architecture tolerates a last batch of one sample, with or without BatchNorm."""
    odd = [(BATCH, 1, 0, 0), (0, BATCH // 2, BATCH // 2 + 1, 0), (0, 0, 2 * BATCH, 1), (3, 3, 3, BATCH)]
    _check_finite(toy.run(toy.config(odd), evaluate=True).checked())


@check
def one_client(toy: ToyFederation) -> None:
    """A federation of one client runs, and its client is trained."""
    outcome = toy.run(toy.config(CLASS_COUNTS[:1]), evaluate=True).checked()
    _check_finite(outcome)
    assert set(outcome.ledger.digests) == {"0"}, "the only client was never trained"


@check
def partial_participation(toy: ToyFederation) -> None:
    """A client that is not selected for a round does not change."""
    config = toy.config(rounds=3)
    selected = {1: ("0", "1", "2"), 2: ("1", "3"), 3: ("0", "2", "3")}
    outcome = toy.run(config, selected=lambda number: selected[number]).checked()
    _check_finite(outcome)
    before: dict[str, str] = {}
    for number, after in enumerate(outcome.after_rounds, 1):
        for client in ("0", "1", "2", "3", "4"):
            changed = after.get(client) != before.get(client)
            assert not changed or client in selected[number], (
                f"client {client} changed in round {number} without being selected"
            )
        before = after
    assert set(before) == {"0", "1", "2", "3"}, f"only clients {sorted(before)} changed"


@check
def failing_clients_tolerated(toy: ToyFederation) -> None:
    """30 % of the clients in each call raise, time out, or send a damaged reply or NaN. They are left out."""
    faulty = FaultyEngine()
    outcome = toy.run(wrap=faulty)  # two rounds with two failures each: every fault once
    injected = {(call, client) for call, client, _ in faulty.injected}
    recorded = {(failure["call"], failure["client"]) for failure in outcome.failures}
    assert {fault for _, _, fault in faulty.injected} == FAULTS.keys(), "not every fault was tried"
    assert recorded == injected, (
        f"failures {sorted(injected)} were injected, but {sorted(map(str, recorded))} recorded"
    )
    for failure in outcome.failures:
        assert failure["message"], f"the failure of client {failure['client']} has no message"
    _check_finite(outcome)


@check
def failing_client_keeps_its_state(toy: ToyFederation) -> None:
    """A client whose answers are all refused keeps its initial state."""
    outcome = toy.run(wrap=FaultyEngine(failing_clients=lambda call, tasks: ["1"]))
    assert outcome.failures, "nothing failed"
    assert "1" not in outcome.ledger.digests, "client 1 changed although none of its answers was accepted"
    others = sorted(outcome.ledger.digests)
    assert others == ["0", "2", "3", "4"], f"of the other clients only {others} changed"
    _check_finite(outcome)


def _check_finite(outcome: Outcome) -> None:
    """Check that the server's state is finite and that accuracies count test samples."""

    def walk(path: str, value: object) -> None:
        tensor = value.values if isinstance(value, ClassTable) else value
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            assert bool(torch.isfinite(tensor).all()), f"the server's '{path}' is not finite"
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{path}/{key}", item)

    for name, value in outcome.server.items():
        walk(name, value)
    for counts in outcome.accuracy.values():
        for client, (correct, total) in counts.items():
            assert 0 <= correct <= total and total > 0, f"client {client} has {correct} correct of {total}"
