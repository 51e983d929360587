"""Replies that would end a round: the round is repeated without them, and their client is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.test_codec import forged_shape

import polyfed
from polyfed.core import (
    Client,
    Cohort,
    Method,
    Payload,
    Reply,
    ScalarField,
    Sends,
    Server,
    TensorField,
    register,
    step,
)
from polyfed.core.engine import Answer
from polyfed.core.reply_magnitudes import ReplyMagnitudes
from polyfed.testing.engine_wrappers import EngineWrapper
from polyfed.testing.toy_federation import ToyFederation


@register("toy-mean")
@dataclass(frozen=True)
class Mean(Method):
    """The mean of one vector per client, in which one client may lie."""

    factor: float = 1.0  # what client 1 multiplies its vector with
    fault: str = ""  # how the server fails

    sends = Sends(up="a vector", down="nothing")

    def round(self, server: Server, cohort: Cohort) -> None:
        total = torch.zeros(2)
        for name, reply in cohort.stream(self.send):
            if self.fault == name:
                raise ValueError(f"client {name}")
            total += reply.tensor("x")
        if self.fault == "always":
            raise ZeroDivisionError("a fault of the method")
        server.state["who"] = " ".join([*str(server.state.get("who", "")).split(), str(len(cohort))])
        server.state["total"] = total

    @step(up={"x": TensorField((2,)), "n": ScalarField(least=0, most="samples")})
    def send(self, client: Client, msg: Payload) -> Reply:
        client.state["calls"] = client.memory.number("calls") + 1 if "calls" in client.state else 1
        factor = self.factor if client.name == "1" else 1.0
        return {"x": torch.ones(2) * factor, "n": len(client.train)}


def rounds(method: Method, **options: Any) -> Any:
    with ToyFederation(Mean, {}) as toy:
        return toy.run(toy.config(rounds=2), method=method, **options)


def test_values_far_from_the_median_are_rejected() -> None:
    outcome = rounds(Mean(factor=1e6), max_ratio=1e4)
    assert outcome.server["total"].tolist() == [4.0, 4.0]
    assert [(f["round"], f["client"], f["kind"]) for f in outcome.failures] == [
        (1, "1", "rejected"),
        (2, "1", "rejected"),
    ]
    assert "field 'x' holds values up to 1e+06, the median over clients is 1" in outcome.failures[0]["message"]
    assert "1" not in outcome.ledger.versions  # it keeps its initial state


def test_the_repeated_round_is_the_round_without_the_client() -> None:
    """The other clients take each step once: their states of the first attempt are undone."""
    with ToyFederation(Mean, {}) as toy:
        outcome = toy.run(toy.config(rounds=2), method=Mean(factor=1e6), max_ratio=1e4)
        assert outcome.client("0")["state"] == {"calls": 2}


def test_smaller_differences_are_allowed() -> None:
    outcome = rounds(Mean(factor=-10.0), max_ratio=1e4).checked()
    assert outcome.server["total"].tolist() == [-6.0, -6.0]


def test_a_server_that_fails_at_one_reply_continues_without_it() -> None:
    outcome = rounds(Mean(fault="3"))
    assert outcome.server["total"].tolist() == [4.0, 4.0]
    assert {(f["client"], f["message"]) for f in outcome.failures} == {
        ("3", "its reply could not be used: ValueError")
    }


def test_a_fault_of_the_method_is_raised() -> None:
    with pytest.raises(ZeroDivisionError, match="a fault of the method"):
        rounds(Mean(fault="always"))
    with pytest.raises(ZeroDivisionError):  # also if a client could be the reason, but is not
        rounds(Mean(fault="always", factor=50.0))


@dataclass
class ForgedReplies(EngineWrapper):
    """Client 1 sends a few kilobytes whose header announces a tensor of absurd size."""

    def call(self, call: Any, shared: bytes, tasks: Any) -> Any:
        for answer in self.inner.call(call, shared, tasks):
            yield Answer(answer.client, forged_shape([10**3999] * 2)) if answer.client == "1" else answer


def test_a_forged_reply_is_a_failure_of_its_client() -> None:
    outcome = rounds(Mean(), wrap=ForgedReplies(), evaluate=True)
    assert {(f["client"], f["kind"]) for f in outcome.failures} == {("1", "rejected")}
    assert {tuple(f["steps"]) for f in outcome.failures} == {("send",), ("evaluate",)}
    assert outcome.accuracy["personal"]["0"][1] > 0


def test_a_client_is_left_out_after_three_strikes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": {"dataset": "digits", "limit": 60, "partition": {"scheme": "iid"}},
        "models": {"group": ["tiny-mlp"]},
        "clients": 4,
        "rounds": 5,
        "engine": {"name": "serial"},
        "evaluate": {"every": 5},
    }
    with pytest.warns(UserWarning, match="field 'x' holds values"):
        result = polyfed.run(settings, method=Mean(factor=1e6), out=tmp_path / "run", progress=False)
    assert [f["round"] for f in result["failures"]] == [1, 2, 3]
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "client 1 is left out from now on: its replies were rejected in 3 rounds" in events


def test_magnitudes_need_three_replies_and_ignore_tiny_values() -> None:
    magnitudes = ReplyMagnitudes()
    magnitudes.add("s", "a", {"x": 1.0, "y": 0.0})
    magnitudes.add("s", "b", {"x": 1e9, "y": 0.0})
    assert magnitudes.outliers("s", 10) == {} and magnitudes.most_extreme() is None
    magnitudes.add("s", "c", {"x": 2.0, "y": 1e-6})
    assert list(magnitudes.outliers("s", 10)) == ["b"]
    assert magnitudes.outliers("t", 10) == {}
    found = magnitudes.most_extreme()
    assert found is not None and found[0] == "b"


def test_outliers_exceed_the_bound_times_the_median() -> None:
    magnitudes = ReplyMagnitudes()
    for client, value in (("a", 4.0), ("b", 4.0), ("c", 20.0)):
        magnitudes.add("s", client, {"x": value})
    assert magnitudes.outliers("s", 5) == {}
    assert list(magnitudes.outliers("s", 4.9)) == ["c"]
    assert magnitudes.most_extreme() is None  # a ratio of 5 is not suspicious
    magnitudes.add("s", "c", {"x": 40.0})
    assert magnitudes.most_extreme() == ("c", "field 'x' holds values up to 40, the median over clients is 4")
