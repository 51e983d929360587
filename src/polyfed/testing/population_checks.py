"""Clients as they come: with one class, one sample, an odd last batch, alone, absent, or failing."""

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
    """A client that has a single class takes part like any other."""
    _sound(toy.run(toy.config(((9, 0, 0, 0), *CLASS_COUNTS[1:3])), evaluate=True).checked())


@check
def client_with_one_sample(toy: ToyFederation) -> None:
    """A client with one sample, which BatchNorm cannot be trained on, is no reason to fail."""
    _sound(toy.run(toy.config(((0, 1, 0, 0), (0, 0, 0, 1), CLASS_COUNTS[2])), evaluate=True).checked())


@check
def odd_last_batch(toy: ToyFederation) -> None:
    """A last batch of one sample is survived by every architecture, with BatchNorm or without."""
    odd = [(BATCH, 1, 0, 0), (0, BATCH // 2, BATCH // 2 + 1, 0), (0, 0, 2 * BATCH, 1), (3, 3, 3, BATCH)]
    _sound(toy.run(toy.config(odd), evaluate=True).checked())


@check
def one_client(toy: ToyFederation) -> None:
    """A federation of one runs, and its client learns from its own data."""
    outcome = toy.run(toy.config(CLASS_COUNTS[:1]), evaluate=True).checked()
    _sound(outcome)
    assert set(outcome.ledger.digests) == {"0"}, "the only client was never trained"


@check
def partial_participation(toy: ToyFederation) -> None:
    """A client that is not in a round neither sends nor receives nor changes."""
    config = toy.config(rounds=3)
    turns = {1: ("0", "1", "2"), 2: ("1", "3"), 3: ("0", "2", "3")}
    outcome = toy.run(config, selected=lambda number: turns[number]).checked()
    _sound(outcome)
    before: dict[str, str] = {}
    for number, after in enumerate(outcome.after_rounds, 1):
        for client in ("0", "1", "2", "3", "4"):
            changed = after.get(client) != before.get(client)
            assert not changed or client in turns[number], (
                f"client {client} changed in round {number} without its turn"
            )
        before = after
    assert set(before) == {"0", "1", "2", "3"}, f"clients that had a turn and changed are {sorted(before)}"


@check
def failing_clients_survived(toy: ToyFederation) -> None:
    """Each call 30 % of the clients raise, are late, damage their answer or send NaN: recorded, and left out."""
    faulty = FaultyEngine()
    outcome = toy.run(wrap=faulty)  # two rounds of two failures each: every way to fail
    injected = {(call, client) for call, client, _ in faulty.injected}
    recorded = {(failure["call"], failure["client"]) for failure in outcome.failures}
    assert {way for _, _, way in faulty.injected} == FAULTS.keys(), "not every way to fail was tried"
    assert recorded == injected, (
        f"failures {sorted(injected)} were injected, but {sorted(map(str, recorded))} recorded"
    )
    for failure in outcome.failures:
        assert failure["message"], f"the failure of client {failure['client']} is recorded without a reason"
    _sound(outcome)


@check
def client_that_always_fails_stays_as_it_was(toy: ToyFederation) -> None:
    """What a client did in a call whose answer was refused does not count, however far it got."""
    outcome = toy.run(wrap=FaultyEngine(failing_clients=lambda call, tasks: ["1"]))
    assert outcome.failures, "nothing failed"
    assert "1" not in outcome.ledger.digests, "client 1 changed although none of its answers was accepted"
    others = sorted(outcome.ledger.digests)
    assert others == ["0", "2", "3", "4"], f"of the other clients only {others} went on"
    _sound(outcome)


def _sound(outcome: Outcome) -> None:
    """The server holds finite numbers, and accuracies count every test sample."""

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
            assert 0 <= correct <= total and total > 0, f"client {client} got {correct} of {total} right"
