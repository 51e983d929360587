"""Evaluations in the same visit as the last step before them: fewer calls with the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from polyfed.core import Client, Cohort, Method, Outgoing, Payload, Sends, Server, register, step
from polyfed.core.early_evaluations import EarlyEvaluations
from polyfed.core.engine import Answer, Call, Task
from polyfed.core.round_stats import CallTimes, RoundStats
from polyfed.engines.serial import SerialEngine
from polyfed.testing.engine_wrappers import EngineWrapper, FaultyEngine
from polyfed.testing.rounds import run_on_serial
from polyfed.testing.toy_federation import ToyFederation

BOTH = ("personal", "global")


@register("toy-visits")
@dataclass(frozen=True)
class Visits(Method):
    """Trains in one call or more per round, and measures in the middle of a round, as its options say."""

    calls: str = "1"  # a digit for each round; the last one for all later rounds
    measured_early: bool = False  # measure the global accuracy after the first call
    fails_for: str = ""  # the client whose predictions raise an error

    sends = Sends()

    def round(self, server: Server, cohort: Cohort) -> None:
        for _ in range(int(self.calls[min(server.round, len(self.calls)) - 1])):
            cohort.call(self.train)
            if self.measured_early:
                cohort.measure("global")

    @step()
    def train(self, client: Client, msg: Payload) -> None:
        client.fit()

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if client.name == self.fails_for:
            raise ValueError("this client cannot predict")
        return super().predict(client, x)


@register("toy-visits-finish")
@dataclass(frozen=True)
class Finishing(Visits):
    """Trains once more after the last round."""

    def finish(self, server: Server, everyone: Cohort) -> None:
        everyone.call(self.train)


@register("toy-visits-publish")
@dataclass(frozen=True)
class Publishing(Visits):
    """Sends a message to clients before they are evaluated."""

    def publish(self, server: Server) -> Outgoing:
        return Outgoing({"round": server.round})


@dataclass
class CallLog(EngineWrapper):
    """Records all calls, each with its clients."""

    calls: list[tuple[Call, list[str]]] = field(default_factory=list)

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        self.calls.append((call, [task.client for task in tasks]))
        return self.inner.call(call, shared, tasks)

    def kinds(self, number: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the steps and measures of all calls of a round."""
        return [(call.steps, call.measures) for call, _ in self.calls if call.round == number]


def logged(method: type[Visits] = Visits, rounds: int = 3, every: int = 1, **options: Any) -> CallLog:
    """Run rounds on the serial engine and return their calls."""
    log = CallLog()
    selected = options.pop("selected", None)
    with ToyFederation(method, options) as toy:
        federation = toy.federation(toy.config(rounds=rounds))
        server = federation.server(federation.profiles())
        run_on_serial(federation, server, wrap=log, evaluate=True, evaluate_every=every, selected=selected)
    return log


def results(method: type[Visits], options: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return the result of a run, without times and names."""
    with ToyFederation(method, options) as toy:
        result = toy.experiment(toy.settings(rounds=4, **changed))
    varying = ("name", "seconds", "memory", "config_hash")
    return {key: value for key, value in result.items() if key not in varying}


def test_clients_are_evaluated_in_the_visit_that_trains_them() -> None:
    log = logged()
    assert log.kinds(1) == [(("train",), ()), ((), BOTH)]  # nothing is known about the first round
    assert log.kinds(2) == log.kinds(3) == [(("train",), BOTH)]


def test_the_last_call_before_an_evaluation_evaluates() -> None:
    log = logged(calls="3")
    assert log.kinds(2) == [(("train",), ()), (("train",), ()), (("train",), BOTH)]


def test_measures_of_different_moments_are_measured_at_theirs() -> None:
    log = logged(calls="2", measured_early=True)
    assert log.kinds(2) == [(("train",), ("global",)), (("train",), ("personal",))]


def test_a_round_without_evaluation_evaluates_nothing() -> None:
    log = logged(rounds=5, every=2)
    assert [bool(call.measures) for call, _ in log.calls if call.steps] == [False, False, False, True, True]


def test_clients_that_were_not_trained_are_evaluated_in_a_call_of_their_own() -> None:
    log = logged(selected=lambda number: ("0", "3"))
    assert [(call.measures, clients) for call, clients in log.calls if call.round == 2] == [
        (BOTH, ["0", "3"]),
        (BOTH, ["1", "2", "4"]),
    ]


def test_clients_that_receive_a_message_before_their_evaluation_are_evaluated_after_it() -> None:
    log = logged(Publishing)
    assert log.kinds(2) == log.kinds(3) == [(("train",), ()), ((), BOTH)]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Visits, {}),
        (Visits, {"calls": "1213"}),  # every prediction is wrong
        (Visits, {"calls": "2", "measured_early": True}),
        (Finishing, {}),
        (Finishing, {"calls": "2", "measured_early": True}),
        (Publishing, {}),
        (Visits, {"fails_for": "2"}),
    ],
)
@pytest.mark.parametrize(
    "changed", [{}, {"participation": 0.4}, {"evaluate": {"every": 3, "metrics": ["macro_f1", "confusion"]}}]
)
def test_results_are_those_of_evaluations_after_the_round(
    method: type[Visits], options: dict[str, Any], changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    early = results(method, options, **changed)
    monkeypatch.setattr(SerialEngine, "evaluates_after_steps", False)
    assert results(method, options, **changed) == early


def test_an_evaluation_that_fails_is_a_failure_of_the_evaluation_alone() -> None:
    with ToyFederation(Visits, {"fails_for": "2"}) as toy:
        outcome = toy.run(evaluate=True)
    assert {(f["client"], tuple(f["steps"])) for f in outcome.failures} == {("2", ("evaluate",))}  # type: ignore[arg-type]
    assert outcome.ledger.versions["2"] == outcome.ledger.versions["1"]  # it was trained


def test_evaluations_of_rejected_replies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose reply is rejected keeps its old state, so the old state is what an evaluation measures."""
    settings: dict[str, Any] = {"wrap": FaultyEngine(failing_clients=lambda call, tasks: ["1"]), "evaluate": True}
    with ToyFederation(Visits, {}) as toy:
        early = toy.run(toy.config(rounds=3), **settings)
        monkeypatch.setattr(SerialEngine, "evaluates_after_steps", False)
        later = toy.run(toy.config(rounds=3), **settings)
    assert early.accuracy == later.accuracy
    assert "1" not in early.ledger.versions


def test_the_wait_for_a_call_is_divided_between_steps_and_evaluations() -> None:
    stats = RoundStats(call_seconds=5.0)
    times = CallTimes(stats)
    stats.call_seconds += 4.0  # two workers: the server waits half as long as the clients take
    times.add(Answer("0", seconds=4.0, evaluation_seconds=1.0))
    times.add(Answer("1", seconds=2.0, evaluation_seconds=1.0))
    times.close()
    assert (stats.call_seconds, stats.evaluation_seconds, stats.evaluation_wait_seconds) == (8.0, 1.0, 1.0)


def test_only_what_a_round_will_evaluate_is_evaluated_early() -> None:
    early = EarlyEvaluations(Visits(), enabled=True)
    early.begin_round(BOTH, ())
    assert early.next_call() == ((), ())  # nothing is known of an earlier round
    early.evaluated(BOTH, Outgoing())
    for wanted, expected in ((BOTH, BOTH), (("personal",), ()), ((), ()), (BOTH, BOTH)):
        early.begin_round(wanted, ("f1",))
        assert early.next_call() == (expected, ("f1",) if expected else ())
        assert early.next_call() == ((), ())  # the second call of a round is not the last one before an evaluation
