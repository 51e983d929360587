"""Calls between server and clients: order, several steps, refusals, failures and repeated rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed.config import parse
from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Payload,
    Reply,
    ScalarField,
    Sends,
    Server,
    TableField,
    TensorField,
    TreeField,
    register,
    step,
)
from polyfed.core.door import TooFewRepliesError, replies_needed
from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.errors import InputError, PayloadError, RunError
from polyfed.testing.engine_wrappers import EngineWrapper, FaultyEngine, RecordingEngine, ReversedEngine
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation


@register("toy-ask")
@dataclass(frozen=True)
class Ask(Method):
    """A method that makes one kind of call per round, chosen by a field."""

    what: str = "count"
    marker: str = ""

    sends = Sends(up="numbers", down="numbers")

    def round(self, server: Server, cohort: Cohort) -> None:
        getattr(self, f"ask_{self.what}")(server, cohort)

    # what the server does

    def ask_count(self, server: Server, cohort: Cohort) -> None:
        seen = list(cohort.stream(self.count))
        server.state["order"] = " ".join(name for name, _ in seen)
        server.state["samples"] = sum(reply.number("n") for _, reply in seen)

    def ask_clash(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.hear, shared={"x": 1}, each={"2": {"x": 2}})

    def ask_each(self, server: Server, cohort: Cohort) -> None:
        got = cohort.call(self.hear, shared={"y": 10}, each={k: {"x": int(k)} for k in cohort.ids})
        server.state["heard"] = {name: reply["sum"] for name, reply in got.items()}

    def ask_stray(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.hear, each={"99": {"x": 1}})

    def ask_both(self, server: Server, cohort: Cohort) -> None:
        got = cohort.call(self.hear, self.remember, shared={"x": 3, "y": 4})
        server.state["both"] = {name: {**reply} for name, reply in got.items()}

    def ask_twice_the_same(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.count, self.count, shared={})

    def ask_nothing_known(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.undeclared)

    def ask_wrong(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.wrong)

    def ask_streams(self, server: Server, cohort: Cohort) -> None:
        first, second = cohort.call(self.draw), cohort.call(self.draw)
        server.state["first"] = {name: reply["x"] for name, reply in first.items()}
        server.state["second"] = {name: reply["x"] for name, reply in second.items()}

    def ask_two_calls(self, server: Server, cohort: Cohort) -> None:
        total = sum(reply.number("n") for reply in cohort.call(self.count).values())
        replies = cohort.call(self.stumble, shared={"total": total})
        server.state["got"] = sum(reply.number("echo") for reply in replies.values())

    def ask_note(self, server: Server, cohort: Cohort) -> None:
        server.record("figure", margin=server.round / 2)

    # what clients do

    @step(up={"n": ScalarField(), "x": TensorField((2,)), "rows": TableField(1, counts=True), "deep": TreeField()})
    def count(self, client: Client, msg: Payload) -> Reply:
        k = int(client.name)
        labels = torch.tensor([0, 3] if k == 0 else [3])
        table = ClassTable(labels, torch.full((len(labels), 1), float(k + 1)), torch.full((len(labels),), k + 1))
        return {"n": len(client.train), "x": torch.tensor([1.0, float(k)]), "rows": table, "deep": {str(k % 2): 1.5}}

    @step(down={"x": ScalarField(optional=True), "y": ScalarField(optional=True)}, up={"sum": ScalarField()})
    def hear(self, client: Client, msg: Payload) -> Reply:
        return {"sum": msg.number("x") + msg.number("y")}

    @step(down={"x": ScalarField()}, up={"kept": ScalarField()})
    def remember(self, client: Client, msg: Payload) -> Reply:
        client.state["x"] = msg["x"]
        return {"kept": client.memory.number("x") * 2}

    def undeclared(self, client: Client, msg: Payload) -> Reply:
        return {}

    @step(up={"right": ScalarField()})
    def wrong(self, client: Client, msg: Payload) -> Reply:
        return {"right": 1, "left": 2}

    @step(up={"x": TensorField((2,))})
    def draw(self, client: Client, msg: Payload) -> Reply:
        own = torch.rand(1, generator=client.stream("noise"))
        return {"x": torch.cat([own, torch.rand(1)])}

    @step(down={"total": ScalarField()}, up={"echo": ScalarField()})
    def stumble(self, client: Client, msg: Payload) -> Reply:
        """Client 1 fails the first time that it is asked, whoever asks."""
        marker = Path(self.marker)
        client.state["heard"] = msg["total"]
        client.fit()
        if client.name == "1" and not marker.exists():
            marker.touch()
            raise RuntimeError("not yet")
        return {"echo": msg.number("total")}


def ask(what: str, **options: Any) -> Any:
    with ToyFederation(Ask, {"what": what}) as toy:
        return toy.run(toy.config(rounds=1), **options)


def test_replies_come_in_client_order() -> None:
    for wrap in (None, ReversedEngine()):
        outcome = ask("count", wrap=wrap)
        assert outcome.server["order"] == "0 1 2 3 4"
        assert outcome.server["samples"] == sum(map(sum, CLASS_COUNTS))


def test_each_client_gets_its_own_and_the_shared_message() -> None:
    assert ask("each").server["heard"] == {k: int(k) + 10 for k in "01234"}


def test_duplicate_fields_and_unknown_clients_are_refused() -> None:
    outcome_of_others: list[Any] = []
    with ToyFederation(Ask, {"what": "clash"}) as toy, pytest.raises(TooFewRepliesError, match="client 0"):
        outcome_of_others.append(toy.run(toy.config(rounds=1)))
    assert not outcome_of_others
    with pytest.raises(RunError, match="client 99"):
        ask("stray")


def test_a_duplicate_field_fails_only_its_client() -> None:
    @dataclass(frozen=True)
    class Clash(Ask):
        def ask_clash(self, server: Server, cohort: Cohort) -> None:
            server.state["who"] = " ".join(cohort.call(self.remember, shared={"x": 1}, each={"2": {"x": 2}}))

    with ToyFederation(Ask, {}) as toy:
        outcome = toy.run(toy.config(rounds=1), method=Clash("clash"))
    assert outcome.server["who"] == "0 1 3 4"
    (failure,) = outcome.failures
    assert failure["client"] == "2" and failure["kind"] == "refused"
    assert "'x' is both in `shared` and in `each`" in str(failure["message"])


def test_several_steps_in_one_call_send_one_reply() -> None:
    outcome = ask("both")
    assert outcome.server["both"] == {k: {"sum": 7, "kept": 6} for k in "01234"}
    assert outcome.ledger.calls == 1
    with pytest.raises(PayloadError, match="both send"):
        ask("twice_the_same")


def test_a_step_must_be_declared_and_may_send_only_what_it_declares() -> None:
    with pytest.raises(PayloadError, match="no step called 'undeclared'"):
        ask("nothing_known")
    with pytest.raises(TooFewRepliesError, match=r"'left'.*right"):
        ask("wrong")


def test_a_step_called_twice_in_a_round_gets_new_random_streams() -> None:
    server = ask("streams").server
    draws = [x.tolist() for part in ("first", "second") for x in server[part].values()]
    flat = [number for draw in draws for number in draw]
    assert len(set(flat)) == 2 * 2 * 5  # every client, call, and kind of generator has numbers of its own
    again = ask("streams", wrap=ReversedEngine()).server
    assert all(torch.equal(again["first"][k], server["first"][k]) for k in "01234")


class Labels(EngineWrapper):
    """Collects the labels of calls. Random streams of a step are named after them."""

    def __init__(self) -> None:
        self.labels: list[Sequence[str]] = []

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        self.labels.append(tuple(call.labels))
        return self.inner.call(call, shared, tasks)


def test_the_first_call_of_a_step_has_its_name_and_later_ones_a_number() -> None:
    engine = Labels()
    ask("streams", wrap=engine)
    assert [label for label in engine.labels if label] == [("draw",), ("draw.2",)]


# failures


class Failing(EngineWrapper):
    """Makes some clients fail, in calls or in evaluations."""

    def __init__(self, *clients: str, evaluations: bool = False, kind: Any = "died") -> None:
        self.clients = clients
        self.evaluations = evaluations
        self.kind = kind

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        for answer in self.inner.call(call, shared, tasks):
            hit = answer.client in self.clients and bool(call.steps) != self.evaluations
            yield replace(answer, failure=Failure(self.kind, "gone", "trace")) if hit else answer


def test_failures_are_recorded_and_left_out() -> None:
    outcome = ask("count", wrap=Failing("1", "3"))
    assert outcome.server["order"] == "0 2 4"
    assert [f["client"] for f in outcome.failures] == ["1", "3"]
    assert outcome.failures[0] == {
        "round": 1,
        "client": "1",
        "call": 1,
        "steps": ["count"],
        "kind": "died",
        "message": "gone",
        "detail": "trace",
    }
    assert set(outcome.ledger.digests) == {"0", "2", "4"}


def test_too_few_replies_raise_an_error_that_names_the_call() -> None:
    with pytest.raises(TooFewRepliesError, match=r"0 of 5 clients answered 'count'.*client 0: gone"):
        ask("count", wrap=Failing("0", "1", "2", "3", "4"))


def test_a_state_that_cannot_be_stored_ends_the_run() -> None:
    with pytest.raises(RunError, match="round 1: gone"):
        ask("count", wrap=Failing("2", kind="storage"))


def test_a_client_that_cannot_be_evaluated_is_recorded_and_does_not_count() -> None:
    outcome = ask("count", wrap=Failing("1", evaluations=True), evaluate=True)
    assert list(outcome.accuracy["personal"]) == list("01234")
    assert outcome.accuracy["personal"]["1"] == (0, 0)
    assert outcome.accuracy["personal"]["0"][1] == 8
    assert [f["steps"] for f in outcome.failures] == [["evaluate"]]
    assert outcome.server["order"] == "0 1 2 3 4"


def test_damaged_replies_never_reach_the_method() -> None:
    faulty = FaultyEngine(fraction=0.9)
    with ToyFederation(Ask, {"what": "count"}) as toy:
        outcome = toy.run(toy.config(rounds=4), wrap=faulty)
    assert len(outcome.failures) == len(faulty.injected) == 16
    said = {str(f["message"]) for f in outcome.failures}
    assert any("digest" in message for message in said)
    assert any("not finite" in message for message in said)


def test_bytes_are_counted_for_the_called_clients() -> None:
    recorder = RecordingEngine()
    outcome = ask("each", wrap=recorder)
    (stats,) = outcome.round_stats
    assert sum(len(frame) for seen in recorder.down for frame in seen.frames) == stats.overhead_down
    assert stats.down == {"x": 0, "y": 0}  # scalars weigh nothing but overhead
    assert stats.uploads[0] == {"client": "0", "step": "hear", "fields": {"sum": 0}, "shapes": {"sum": "a scalar"}}


# a round that is repeated


# with little memory every client comes back from the store, so a state that is missing there is found
@pytest.mark.parametrize("engine", [{"name": "serial", "memory_budget": 1}, {"name": "pool", "workers": 2}])
def test_a_repeated_round_equals_one_without_failure(tmp_path: Path, engine: dict[str, Any]) -> None:
    with ToyFederation(Ask, {"what": "two_calls", "marker": str(tmp_path / "marker")}) as toy:
        settings = toy.settings(
            engine=engine,
            checkpoint={"seconds": 0.0},
            failures={"min_replies": 5, "on_too_few": "repeat", "repeats": 1},
        )
        stumbled = toy.experiment(settings, tmp_path / "stumbled")
        assert (tmp_path / "marker").exists()
        smooth = toy.experiment(settings, tmp_path / "smooth")
    events = (tmp_path / "stumbled" / "events.jsonl").read_text()
    assert "the round is repeated" in events
    assert "the round is repeated" not in (tmp_path / "smooth" / "events.jsonl").read_text()
    assert stumbled["state_hash"] == smooth["state_hash"]
    assert stumbled["accuracy"] == smooth["accuracy"] and stumbled["loss"] == smooth["loss"]
    # what was undone was sent all the same: its bytes and its failure stay in the record
    assert smooth["failures"] == [] and len(stumbled["failures"]) == 1
    assert stumbled["bytes"]["overhead"]["down"] > smooth["bytes"]["overhead"]["down"]


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == kind]


def test_a_client_that_fails_in_a_run_is_in_its_result(tmp_path: Path) -> None:
    # the marker's folder does not exist, so client 1 fails every time
    with ToyFederation(Ask, {"what": "two_calls", "marker": str(tmp_path / "nowhere" / "marker")}) as toy:
        result = toy.experiment(toy.settings(failures={"min_replies": 1}), tmp_path / "run")
    assert [(f["round"], f["client"], f["kind"]) for f in result["failures"]] == [
        (1, "1", "raised"),
        (2, "1", "raised"),
    ]
    failures = events_of(tmp_path / "run", "failure")
    assert [(f["round"], f["client"]) for f in failures] == [(1, "1"), (2, "1")]
    assert "Traceback" in failures[0]["detail"]


def test_method_events_are_written(tmp_path: Path) -> None:
    with ToyFederation(Ask, {"what": "note"}) as toy:
        toy.experiment(toy.settings(), tmp_path / "run")
    noted = [(event["round"], event["kind"], event["margin"]) for event in events_of(tmp_path / "run", "method")]
    assert noted == [(1, "figure", 0.5), (2, "figure", 1.0)]


def test_without_repeats_the_run_ends(tmp_path: Path) -> None:
    with ToyFederation(Ask, {"what": "two_calls", "marker": str(tmp_path / "marker")}) as toy:
        settings = toy.settings(failures={"min_replies": 5})
        with pytest.raises(RunError, match=r"4 of 5 clients answered 'stumble', at least 5.*client 1.*not yet"):
            toy.experiment(settings)


def test_a_client_that_fails_in_every_round_ends_the_run(tmp_path: Path) -> None:
    with ToyFederation(Ask, {"what": "two_calls", "marker": str(tmp_path / "nowhere" / "marker")}) as toy:
        with pytest.raises(
            RunError, match=r"client 1 failed in each of its 2 rounds.*step 'stumble' of round 1.*nowhere"
        ):
            toy.experiment(toy.settings(rounds=3), tmp_path / "run")
        assert not (tmp_path / "run" / "result.json").exists()
        assert [event["round"] for event in events_of(tmp_path / "run", "round")] == [1, 2]


def test_a_client_that_fails_once_is_tolerated_and_python_warns(tmp_path: Path) -> None:
    sentence = r"1 replies of 1 clients \(1\).*round 1, step 'stumble'.*not yet"
    marker = str(tmp_path / "marker")
    with (
        ToyFederation(Ask, {"what": "two_calls", "marker": marker}) as toy,
        pytest.warns(UserWarning, match=sentence),
    ):
        result = toy.experiment(toy.settings(), tmp_path / "run")
    assert [(f["round"], f["client"]) for f in result["failures"]] == [(1, "1")]


def test_more_than_a_third_of_the_clients_failing_ends_the_run() -> None:
    assert [replies_needed(0.666, clients) for clients in range(1, 10)] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert [replies_needed(1.0, clients) for clients in (1, 3, 300)] == [1, 3, 300]
    assert [replies_needed(2, clients) for clients in (1, 2, 9)] == [1, 2, 2]


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.5])
def test_min_replies_is_a_share_or_a_number(value: float) -> None:
    with pytest.raises(InputError, match=r"failures\.min_replies.*a share above 0 up to 1.0, or a number of clients"):
        parse({"failures": {"min_replies": value}})
