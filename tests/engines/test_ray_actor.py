"""A Ray actor's work, in this process: states that come with tasks, states that it keeps, errors in its set-up."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.test_ray_nodes import SETTING, packed

from polyfed.config import parse
from polyfed.core.codec import encode
from polyfed.core.engine import Call
from polyfed.engines import framing
from polyfed.engines.fork_server import WORKER
from polyfed.engines.ray_actor import SMALL, Actor, Block, TaskStateStore, block_of, bytes_of
from polyfed.errors import StateError
from polyfed.federation import ray_nodes, simulation


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor changes the process that it lives in."""
    monkeypatch.setitem(os.environ, WORKER, "")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


class Driver:
    """What the engine sends to an actor, and what it reads from its answers."""

    def __init__(self, folder: Path, **changed: Any) -> None:
        made = simulation.build_federation(parse(SETTING))
        description, files = packed(made, folder)
        self.actor = Actor()
        self.error = self.actor.set_up(
            ray_nodes.HOST_FACTORY,
            json.dumps({**description, **changed}).encode(),
            [block_of(file) for file in files],
        )
        self.names = made.names

    def train(self, number: int, tasks: dict[str, tuple[int, bytes]]) -> list[tuple[dict[str, Any], bytes]]:
        """Train clients from a version, with the state that is sent. Return entries and new states."""
        entries = [
            {"client": name, "base": base, "discard": [], "own": False, "state": bool(state)}
            for name, (base, state) in tasks.items()
        ]
        head = {"call": framing.call_to_json(Call(number, number, ("train",), ("train",))), "tasks": entries}
        blocks: list[Block] = [block_of(state) for _, state in tasks.values() if state]
        answers, *out = self.actor.work(json.dumps(head).encode(), encode({}).data, blocks)
        received = iter(out)
        result = []
        for entry in json.loads(bytes_of(answers)):
            if "missing" in entry:
                result.append((entry, b""))
                continue
            next(received)  # the reply
            result.append((entry, bytes_of(next(received)) if entry["state"] else b""))
        return result


def test_a_state_may_stay_with_the_actor_or_come_with_the_task(tmp_path: Path) -> None:
    first, second = Driver(tmp_path), Driver(tmp_path)
    assert first.error == second.error == "" and os.environ[WORKER] == "1"
    name, other = first.names[:2]
    [(_, after_one), _] = first.train(1, {name: (0, b""), other: (0, b"")})
    [(kept, after_two)] = first.train(2, {name: (1, b"")})
    [(sent, same)] = second.train(2, {name: (1, after_one)})
    assert kept["answer"]["failure"] is None and kept["answer"]["digest"] == sent["answer"]["digest"]
    assert after_two == same != after_one


def test_a_state_that_the_actor_does_not_have_is_asked_for(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    assert driver.train(2, {driver.names[0]: (1, b"")}) == [({"missing": True}, b"")]
    assert driver.actor.peak() > 0


def test_times_are_returned_if_the_run_is_profiled(tmp_path: Path) -> None:
    driver = Driver(tmp_path, profile=True)
    [(entry, _)] = driver.train(1, {driver.names[0]: (0, b"")})
    assert entry["profile"]
    assert "profile" not in Driver(tmp_path).train(1, {driver.names[0]: (0, b"")})[0][0]


@pytest.mark.parametrize(
    ("factory", "error"),
    [
        ("polyfed.federation.ray_nodes:nothing", "AttributeError: .*'nothing'"),
        ("polyfed.federation.ray_nodes:host_on_node", "KeyError: 'dataset'"),
    ],
)
def test_errors_of_the_set_up_are_returned(factory: str, error: str) -> None:
    message = Actor().set_up(factory, b"{}", [b""] * len(ray_nodes.FILES))
    assert re.fullmatch(error, message), message


def test_an_error_for_the_user_is_returned_as_it_is(tmp_path: Path) -> None:
    error = Driver(tmp_path, dataset=f"{tmp_path}/nowhere/digits-of-another-version").error
    assert "digits" in error and "Error" not in error.split()[0]


def test_a_state_that_was_not_sent_cannot_be_read() -> None:
    store = TaskStateStore()
    store.add("ana", 3, b"state")
    assert store.read("ana", 3) == b"state"
    store.take_new("ana")
    with pytest.raises(StateError, match="the state of client ana after call 3 was not sent with its task"):
        store.read("ana", 3)


@pytest.mark.parametrize("size", [0, SMALL - 1, SMALL])
def test_blocks_hold_their_bytes(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert bytes_of(block_of(data)) == data
    assert isinstance(block_of(data), bytes) == (size < SMALL)
