"""The same result every time: on every engine, in any order, after a stop, whatever the global random state is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed.core import rng
from polyfed.testing.battery import check
from polyfed.testing.engine_wrappers import Backwards
from polyfed.testing.toy_federation import SHARES, Lab


@check
def serial_equals_pool(lab: Lab) -> None:
    """Two worker processes give the state hash of the serial engine."""
    here = lab.reference().hash
    there = lab.experiment(lab.settings(engine={"name": "pool", "workers": 2}))["state_hash"]
    assert there == here, "the pool's result differs from the serial engine's"


@check
def stopped_and_resumed(lab: Lab) -> None:
    """A run that breaks off in its second round and is started again ends like one that did not."""
    settings = lab.settings(SHARES[:2], rounds=3, checkpoint={"seconds": 0.0})
    straight = lab.experiment(settings)
    folder = lab.new_folder()
    try:
        lab.experiment(settings, folder, observers=[_Breaker(at=2)])
    except _BrokenOffError:
        pass
    else:
        raise AssertionError("the run did not break off")
    resumed = lab.experiment(settings, folder)
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

    def round_done(self, record: dict[str, Any]) -> None:
        if record["round"] == self._at:
            raise _BrokenOffError

    def note(self, sentence: str) -> None:
        pass


@check
def order_of_clients_is_irrelevant(lab: Lab) -> None:
    """Serving the clients of a call in another order changes nothing."""
    assert lab.run(wrap=Backwards()).whole().hash == lab.reference().hash, "the result depends on who is served first"


@check
def little_memory_changes_nothing(lab: Lab) -> None:
    """Clients that are dropped from memory after every call and rebuilt from their state behave alike.

    Finds what survives a step without being state: frozen parameters, modules put onto the model, live references.
    """
    assert lab.run(memory=1).whole().hash == lab.reference().hash, (
        "the result depends on what stays in memory between calls"
    )


@check
def global_random_state_untouched(lab: Lab) -> None:
    """No draw comes from torch's, numpy's or Python's global generator, and none of them is moved."""
    config = lab.config(SHARES[:3])
    before = _global_state()
    first = lab.run(config, evaluate=True).whole().hash
    for name, state in _global_state().items():
        assert state == before[name], f"the global random state of {name} was changed"
    kept = np.random.get_state(), random.getstate()
    try:
        np.random.set_state(np.random.RandomState(12345).get_state())
        random.setstate(random.Random(12345).getstate())
        with rng.seeded("another global state"):
            second = lab.run(config, evaluate=True).hash
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
def evaluation_leaves_no_trace(lab: Lab) -> None:
    """States are the same whether clients were evaluated or not."""
    assert lab.run(evaluate=True).whole().hash == lab.reference().hash, "evaluating changed the state of the run"
