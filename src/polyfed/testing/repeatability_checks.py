"""Checks of reproducibility: on other engines, in any order of clients, after a resume and with any global seed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from polyfed.core import rng
from polyfed.runs.records import RoundRecord
from polyfed.testing.battery import check
from polyfed.testing.engine_wrappers import ReversedEngine
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

# A method changes the global random state in every run or in none. Other threads of the process may do so once.
ATTEMPTS = 3


@check
def serial_equals_pool(toy: ToyFederation) -> None:
    """The pool with two workers gives the state hash of the serial engine."""
    serial = toy.reference().hash
    pool = toy.experiment(toy.settings(engine={"name": "pool", "workers": 2}))["state_hash"]
    assert pool == serial, "the pool's result differs from the serial engine's"


@check
def resumed_equals_uninterrupted(toy: ToyFederation) -> None:
    """A run that is interrupted in its second round and resumed gives the same result."""
    settings = toy.settings(CLASS_COUNTS[:2], checkpoint={"seconds": 0.0})
    uninterrupted = toy.experiment(settings)
    folder = toy.new_folder()
    try:
        toy.experiment(settings, folder, observers=[_Interrupter(at=2)])
    except _InterruptedError:
        pass
    else:
        raise AssertionError("the run was not interrupted")
    resumed = toy.experiment(settings, folder)
    assert resumed["state_hash"] == uninterrupted["state_hash"], "the result changes if the run is resumed"
    for part in ("accuracy", "loss", "bytes"):
        assert resumed[part] == uninterrupted[part], f"the {part} changes if the run is resumed"


class _InterruptedError(Exception):
    """Stands for the end of a process in the middle of a run."""


class _Interrupter:
    """An observer that raises before the checkpoint of a round is written."""

    def __init__(self, at: int) -> None:
        self._at = at

    def started(self, config: object, folder: Path, done: int) -> None:
        pass

    def round_done(self, record: RoundRecord) -> None:
        if record.round == self._at:
            raise _InterruptedError

    def note(self, sentence: str) -> None:
        pass


@check
def independent_of_client_order(toy: ToyFederation) -> None:
    """The order in which clients run does not change the result."""
    assert toy.run(wrap=ReversedEngine()).checked().hash == toy.reference().hash, (
        "the result depends on the order of clients"
    )


@check
def independent_of_memory_budget(toy: ToyFederation) -> None:
    """Dropping clients from memory after every call does not change the result.

    It finds what a step leaves behind outside of the state: frozen parameters, added modules, live references.
    """
    assert toy.run(memory=1).checked().hash == toy.reference().hash, (
        "the result depends on what stays in memory between calls"
    )


@check
def global_random_state_untouched(toy: ToyFederation) -> None:
    """The method neither uses nor changes the global generators of torch, numpy and Python."""
    config = toy.config(CLASS_COUNTS[:2])
    for _ in range(ATTEMPTS):
        before = _global_state()
        first = toy.run(config, evaluate=True).checked().hash
        changed = [name for name, state in _global_state().items() if state != before[name]]
        if not changed:
            break
    assert not changed, f"the global random state of {changed[0]} was changed"
    states = np.random.get_state(), random.getstate()
    try:
        np.random.set_state(np.random.RandomState(12345).get_state())
        random.setstate(random.Random(12345).getstate())
        with rng.seeded("another global state"):
            second = toy.run(config, evaluate=True).hash
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
    assert first == second, "the result depends on the global random state, or on an unseeded generator"


def _global_state() -> dict[str, str]:
    return {
        "torch": str(torch.random.get_rng_state().tolist()),
        "numpy": str([list(p) if isinstance(p, np.ndarray) else p for p in np.random.get_state(legacy=True)]),
        "Python": str(random.getstate()),
    }


@check
def evaluation_leaves_no_trace(toy: ToyFederation) -> None:
    """Evaluating clients does not change any state."""
    assert toy.run(evaluate=True).checked().hash == toy.reference().hash, "evaluation changed the state of the run"
