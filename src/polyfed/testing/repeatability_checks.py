"""The same result every time: on every engine, in any order, after a stop, whatever the global random state is."""

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


@check
def serial_equals_pool(toy: ToyFederation) -> None:
    """Two worker processes give the state hash of the serial engine."""
    here = toy.reference().hash
    there = toy.experiment(toy.settings(engine={"name": "pool", "workers": 2}))["state_hash"]
    assert there == here, "the pool's result differs from the serial engine's"


@check
def stopped_and_resumed(toy: ToyFederation) -> None:
    """A run that breaks off in its second round and is started again ends like one that did not."""
    settings = toy.settings(CLASS_COUNTS[:2], rounds=3, checkpoint={"seconds": 0.0})
    straight = toy.experiment(settings)
    folder = toy.new_folder()
    try:
        toy.experiment(settings, folder, observers=[_Breaker(at=2)])
    except _BrokenOffError:
        pass
    else:
        raise AssertionError("the run did not break off")
    resumed = toy.experiment(settings, folder)
    assert resumed["state_hash"] == straight["state_hash"], "a stop and a resume change the result"
    for part in ("accuracy", "loss", "bytes"):
        assert resumed[part] == straight[part], f"a stop and a resume change the measured {part}"


class _BrokenOffError(Exception):
    """Stands for whatever ends a process in the middle of a run."""


class _Breaker:
    """An observer that ends the run before the checkpoint of a round is written."""

    def __init__(self, at: int) -> None:
        self._at = at

    def started(self, config: object, folder: Path, done: int) -> None:
        pass

    def round_done(self, record: RoundRecord) -> None:
        if record.round == self._at:
            raise _BrokenOffError

    def note(self, sentence: str) -> None:
        pass


@check
def order_of_clients_is_irrelevant(toy: ToyFederation) -> None:
    """Serving the clients of a call in another order changes nothing."""
    assert toy.run(wrap=ReversedEngine()).checked().hash == toy.reference().hash, (
        "the result depends on who is served first"
    )


@check
def little_memory_changes_nothing(toy: ToyFederation) -> None:
    """Clients that are dropped from memory after every call and rebuilt from their state behave alike.

    Finds what survives a step without being state: frozen parameters, modules put onto the model, live references.
    """
    assert toy.run(memory=1).checked().hash == toy.reference().hash, (
        "the result depends on what stays in memory between calls"
    )


@check
def global_random_state_untouched(toy: ToyFederation) -> None:
    """No draw comes from torch's, numpy's or Python's global generator, and none of them is moved."""
    config = toy.config(CLASS_COUNTS[:3])
    before = _global_state()
    first = toy.run(config, evaluate=True).checked().hash
    for name, state in _global_state().items():
        assert state == before[name], f"the global random state of {name} was changed"
    kept = np.random.get_state(), random.getstate()
    try:
        np.random.set_state(np.random.RandomState(12345).get_state())
        random.setstate(random.Random(12345).getstate())
        with rng.seeded("another global state"):
            second = toy.run(config, evaluate=True).hash
    finally:
        np.random.set_state(kept[0])
        random.setstate(kept[1])
    assert first == second, "the result depends on the global random state, or on no seed at all"


def _global_state() -> dict[str, str]:
    return {
        "torch": str(torch.random.get_rng_state().tolist()),
        "numpy": str([list(p) if isinstance(p, np.ndarray) else p for p in np.random.get_state(legacy=True)]),
        "Python": str(random.getstate()),
    }


@check
def evaluation_leaves_no_trace(toy: ToyFederation) -> None:
    """States are the same whether clients were evaluated or not."""
    assert toy.run(evaluate=True).checked().hash == toy.reference().hash, "evaluating changed the state of the run"
