"""The server side of the door: numbers calls, encodes and checks messages, counts bytes, records failures.

It lives as long as a run. What it must remember over a restart is its ledger: how many calls were made, and which
state every client is in.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from polyfed.core.codec import Frame, MessageHeader, decode, encode, read_header
from polyfed.core.engine import INITIAL, Answer, Call, Engine, Failure, Task, TrainingStats
from polyfed.core.method import Method, Outgoing
from polyfed.core.payload import Payload, Value
from polyfed.core.probes import SAMPLES, Look
from polyfed.core.profile import Layout, Profile
from polyfed.core.schema import TreeField, check_finite, check_header
from polyfed.core.step import Messages, combined
from polyfed.errors import PayloadError, RunError

MOST_SAMPLES = 10**12  # that an evaluation may count


@dataclass
class Ledger:
    """Which state every client is in, and which others still exist."""

    calls: int = 0
    versions: dict[str, int] = field(default_factory=dict)  # the state each client is in; absent: initial
    digests: dict[str, str] = field(default_factory=dict)
    alive: dict[str, list[int]] = field(default_factory=dict)  # states that may exist in the store

    def copy(self) -> Ledger:
        alive = {client: list(states) for client, states in self.alive.items()}
        return Ledger(self.calls, dict(self.versions), dict(self.digests), alive)


@dataclass
class RoundStats:
    """What one round cost and what went wrong in it."""

    up: dict[str, int] = field(default_factory=dict)  # bytes by field
    down: dict[str, int] = field(default_factory=dict)
    overhead_up: int = 0
    overhead_down: int = 0
    left: list[dict[str, object]] = field(default_factory=list)  # what left each client, by field
    failures: list[dict[str, object]] = field(default_factory=list)
    trained: list[TrainingStats] = field(default_factory=list)
    client_seconds: float = 0.0  # sum over clients of the time their steps took
    waited: float = 0.0  # time the server waited for calls
    evaluated: float = 0.0
    blocked: float = 0.0  # time the server waited for evaluations

    def task_loss(self) -> float | None:
        """The task's own training loss, weighted by samples."""
        finite = [t for t in self.trained if math.isfinite(t.loss)]
        samples = sum(t.samples for t in finite)
        return sum(t.loss * t.samples for t in finite) / samples if samples and finite else None


class TooFewRepliesError(RunError):
    """A call brought fewer replies than the run demands."""


class Door:
    """Everything that happens between a method's round and an engine."""

    def __init__(
        self,
        method: Method,
        engine: Engine,
        roster: Sequence[Profile],
        *,
        min_replies: int = 1,
        message_limit: int = 4 << 30,
        keep: Callable[[Call, str, bytes], None] | None = None,
    ) -> None:
        self.method = method
        self.ledger = Ledger()
        self.round_start = Ledger()  # to go back to when a round is repeated
        self.pinned: list[Mapping[str, int]] = []  # what checkpoints refer to, by client
        self.stats = RoundStats()
        self.round = 0
        self._engine = engine
        self._profiles = {profile.name: profile for profile in roster}
        self._min_replies = min_replies
        self._limit = message_limit
        self._keep = keep  # told of every reply that is accepted, with its bytes
        self._calls_of_step: dict[str, int] = {}
        self._evaluations = 0
        self._open = False  # whether replies of a call are still being read
        self._beside = ThreadPoolExecutor(1, "measuring")
        self._measuring: Future[dict[str, dict[str, tuple[int, int]]]] | None = None

    def begin_round(self, number: int) -> None:
        """Start counting anew, unless a round is repeated. What only earlier rounds needed may go from now on."""
        if number != self.round:
            self.stats = RoundStats()
        self.round = number
        self.round_start = self.ledger.copy()
        self._calls_of_step = {}

    def undo_round(self) -> None:
        """Every client is again as the round found it. Call numbers go on: each stands for one call."""
        made, exists = self.ledger.calls, self.ledger.alive
        self.stats.trained = []  # of what is undone, only its cost stays
        self.ledger = self.round_start.copy()
        self.ledger.calls, self.ledger.alive = made, exists

    # calling steps

    def ask(self, steps: tuple[str, ...], clients: Sequence[str], out: Outgoing) -> Iterator[tuple[str, Payload]]:
        """Run steps on clients and yield their replies in client order, leaving failures out."""
        if self._open:
            raise RunError(
                "a call was made while the replies of another were still being read; use cohort.call there"
            )
        self.settle()
        messages = combined(self.method, steps)
        stray = sorted(out.each.keys() - set(clients))
        if stray:
            raise RunError(f"a payload is addressed to client {stray[0]}, which is not in the cohort")
        self.ledger.calls += 1
        call = Call(self.ledger.calls, self.round, steps, tuple(self._label(name) for name in steps))
        shared = encode(out.shared)
        own = _encoded(out.each)
        tasks = [
            Task(
                name,
                self.ledger.versions.get(name, INITIAL),
                own[name].data if name in own else b"",
                self._discardable(name),
            )
            for name in clients
        ]
        for name in clients:
            states = self.ledger.alive.setdefault(name, [])
            if call.number not in states:
                states.append(call.number)
            frames = [shared, own[name]] if name in own else [shared]
            for frame in frames:
                for field_name, size in frame.fields.items():
                    self.stats.down[field_name] = self.stats.down.get(field_name, 0) + size
                self.stats.overhead_down += frame.overhead
        compared = any(isinstance(kind, TreeField) and kind.like for kind in messages.up.values())
        sent = read_header(shared.data) if compared else None
        replied = 0
        answers = self._engine.call(call, shared.data, tasks)
        for answer in self._timed(answers):
            down = sent.joined(read_header(own[answer.client].data)) if sent and answer.client in own else sent
            reply = self._accept(call, answer, messages, down)
            if reply is not None:
                replied += 1
                yield answer.client, reply
        needed = min(self._min_replies, len(clients))
        if replied < needed:
            first = next((f for f in self.stats.failures if f["call"] == call.number), {})
            raise TooFewRepliesError(
                f"round {self.round}: {replied} of {len(clients)} clients answered '{'+'.join(steps)}', at least "
                f"{needed} must; the first failure is client {first.get('client')}: {first.get('message')}"
            )

    def _timed(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Answers, with the time spent waiting for them; no other call may be made before the last."""
        self._open = True
        try:
            while True:
                started = time.perf_counter()
                answer = next(answers, None)
                self.stats.waited += time.perf_counter() - started
                if answer is None:
                    return
                yield answer
        finally:
            self._open = False

    def _accept(self, call: Call, answer: Answer, messages: Messages, sent: MessageHeader | None) -> Payload | None:
        """Count and check one answer; a bad one is recorded and left out, and its client stays as it was."""
        self.stats.client_seconds += answer.seconds
        failure = answer.failure
        reply: Payload | None = None
        sizes: dict[str, int] = {}
        shapes: dict[str, str] = {}
        if failure is None:
            try:
                seen = read_header(answer.frame, limit=self._limit)
                check_header(seen, messages.up, self.method, self._profiles[answer.client], sent)
                reply = decode(answer.frame, seen)
                check_finite(reply)
                sizes, shapes = seen.sizes(), seen.shapes()
            except PayloadError as error:
                failure, reply = Failure("refused", str(error)), None
        if failure is not None or reply is None:
            self.stats.overhead_up += len(answer.frame)  # it travelled, whatever it was
            self._failed(call, answer.client, failure or Failure("unavailable", "no answer"))
            return None
        for name, size in sizes.items():
            self.stats.up[name] = self.stats.up.get(name, 0) + size
        self.stats.overhead_up += len(answer.frame) - sum(sizes.values())
        self.stats.left.append(
            {"client": answer.client, "step": "+".join(call.steps), "fields": sizes, "shapes": shapes}
        )
        if self._keep is not None:
            self._keep(call, answer.client, answer.frame)
        self.stats.trained.extend(answer.trained)
        self.ledger.versions[answer.client] = call.number
        self.ledger.digests[answer.client] = answer.digest
        return reply

    # measuring

    def measure_meanwhile(
        self, clients: Sequence[str], measures: tuple[str, ...], published: Outgoing
    ) -> Future[dict[str, dict[str, tuple[int, int]]]]:
        """Start a measurement and return at once, where the engine can run it while the server goes on.

        The next call, or `settle`, waits for its end: clients do one thing at a time.
        """
        self.settle()
        frozen = Outgoing(decode(encode(published.shared).data), published.each)  # the server may go on to change it
        if self._engine.concurrent:
            self._measuring = self._beside.submit(self.measure, clients, measures, frozen)
            return self._measuring
        started = time.perf_counter()
        done: Future[dict[str, dict[str, tuple[int, int]]]] = Future()
        done.set_result(self.measure(clients, measures, published))
        self.stats.blocked += time.perf_counter() - started
        return done

    def settle(self) -> None:
        """Wait for a measurement that is under way."""
        if self._measuring is not None:
            started = time.perf_counter()
            waiting, self._measuring = self._measuring, None
            waiting.result()
            self.stats.blocked += time.perf_counter() - started

    def measure(
        self, clients: Sequence[str], measures: tuple[str, ...], published: Outgoing
    ) -> dict[str, dict[str, tuple[int, int]]]:
        """Right answers and samples, by measure and client. Not part of the method's traffic, so not counted."""
        started = time.perf_counter()
        shared, own = encode(published.shared).data, _encoded(published.each)
        found: dict[str, dict[str, tuple[int, int]]] = {}
        twins = (
            self._twins(clients, own) if self.method.predicts_from_published() else {name: name for name in clients}
        )
        one_of_each = list(dict.fromkeys(twins.values()))
        # Everybody on data of their own; on what is the same for all, one of those who would answer alike.
        plans = [(clients, tuple(m for m in measures if m != "global")), (one_of_each, ("global",))]
        if "global" not in measures or len(one_of_each) == len(clients):
            plans = [(clients, measures)]
        for asked, wanted in plans:
            self._evaluations += 1
            call = Call(-self._evaluations, self.round, measures=wanted)
            tasks = [
                Task(name, self.ledger.versions.get(name, INITIAL), own[name].data if name in own else b"")
                for name in (asked if wanted else ())
            ]
            for answer in self._engine.call(call, shared, tasks):
                if answer.failure is not None:
                    self._failed(call, answer.client, answer.failure)
                    continue
                try:
                    counted = _right_answers(answer.frame, self._limit, self._measured(wanted))
                except PayloadError as error:
                    self._failed(call, answer.client, Failure("refused", str(error)))
                    continue
                for name, counts in counted.items():
                    found.setdefault(name, {})[answer.client] = counts
        self.stats.evaluated += time.perf_counter() - started

        def of(name: str, client: str) -> tuple[int, int]:
            """A client that could not be measured counts as one without test samples."""
            asked = twins[client] if name.startswith("global") else client
            return found[name].get(asked, (0, 0))

        return {name: {client: of(name, client) for client in clients} for name in found}

    def probe(self, clients: Sequence[str], what: Look) -> Iterator[tuple[str, Payload]]:
        """What clients' own models make of common test samples, one client at a time; failures are left out."""
        self.settle()
        started, self._evaluations = time.perf_counter(), self._evaluations + 1
        call = Call(-self._evaluations, self.round, measures=(what,))
        tasks = [Task(name, self.ledger.versions.get(name, INITIAL)) for name in clients]
        length = 0
        for answer in self._engine.call(call, encode({}).data, tasks):
            if answer.failure is not None:
                self._failed(call, answer.client, answer.failure)
                continue
            try:
                seen = decode(answer.frame, read_header(answer.frame, limit=self._limit))
                length = _check_looked(seen, what, self._profiles[answer.client], length)
            except PayloadError as error:
                self._failed(call, answer.client, Failure("refused", str(error)))
            else:
                yield answer.client, seen
        took = time.perf_counter() - started
        self.stats.evaluated += took
        self.stats.blocked += took

    def _twins(self, clients: Sequence[str], own: Mapping[str, Frame]) -> dict[str, str]:
        """For every client the first with the same architecture and the same message: both answer alike."""
        first: dict[tuple[Layout, str], str] = {}
        return {
            name: first.setdefault((self._profiles[name].model, own[name].digest if name in own else ""), name)
            for name in clients
        }

    # helpers

    def _measured(self, measures: tuple[str, ...]) -> frozenset[str]:
        """What an evaluation may tell of: each measure, by each way of predicting."""
        ways = ("", *(f" by {way}" for way in self.method.also_predict()))
        return frozenset(measure + way for measure in measures for way in ways)

    def _failed(self, call: Call, client: str, why: Failure) -> None:
        """Record that a client gave no usable answer; what it could not keep ends the run."""
        if why.kind == "storage":
            raise RunError(f"round {self.round}: {why.message}")  # going on would lose what is not kept
        self.stats.failures.append(
            {
                "round": self.round,
                "client": client,
                "call": call.number,
                "steps": list(call.steps or ("evaluate",)),
                "kind": why.kind,
                "message": why.message,
                "detail": why.detail,
            }
        )

    def _label(self, step: str) -> str:
        count = self._calls_of_step[step] = self._calls_of_step.get(step, 0) + 1
        return step if count == 1 else f"{step}.{count}"

    def _discardable(self, client: str) -> tuple[int, ...]:
        """States of a client that nothing needs: neither this round, nor the start of it, nor a checkpoint."""
        needed = {book.versions.get(client, INITIAL) for book in (self.ledger, self.round_start)}
        needed |= {versions.get(client, INITIAL) for versions in self.pinned}
        old = tuple(v for v in self.ledger.alive.get(client, ()) if v not in needed)
        if old:
            self.ledger.alive[client] = [v for v in self.ledger.alive[client] if v in needed]
        return old


def _encoded(each: Mapping[str, Mapping[str, Value]]) -> dict[str, Frame]:
    """Each client's message; one that several clients share is encoded, and held, once."""
    made: dict[int, Frame] = {}
    return {
        name: made[id(payload)] if id(payload) in made else made.setdefault(id(payload), encode(payload))
        for name, payload in each.items()
    }


def _right_answers(frame: bytes, limit: int, asked: frozenset[str]) -> dict[str, tuple[int, int]]:
    """What an evaluation counted, by measure."""
    counted: dict[str, tuple[int, int]] = {}
    for name, counts in decode(frame, read_header(frame, limit=limit)).items():
        if name not in asked:
            raise PayloadError(f"an evaluation tells of '{name[:40]}', which was not asked for")
        got = Payload(counts if isinstance(counts, Mapping) else {})
        correct, total = got.number("correct"), got.number("total")
        if not 0 <= correct <= total <= MOST_SAMPLES or int(correct) != correct or int(total) != total:
            raise PayloadError(f"an evaluation counts {correct:g} right answers of {total:g} samples")
        counted[name] = (int(correct), int(total))
    return counted


def _check_looked(seen: Payload, what: Look, profile: Profile, length: int) -> int:
    """Refuse what is no answer to a look. Vectors of all clients have one length, which is given back."""
    if what == "features":
        vectors, classes = seen.tensor("vectors"), seen.tensor("classes")
        rows = len(classes) if classes.ndim == 1 else 0
        if not 1 <= rows <= SAMPLES or vectors.shape != (rows, profile.features) or not vectors.is_floating_point():
            raise PayloadError(f"features of the shape {tuple(vectors.shape)} were not asked for")
        return length
    for stage, vector in seen.weights("signatures").items():
        length = length or vector.numel()
        if not re.fullmatch(r"[a-z]+( [0-9]{1,4})?", stage):  # it becomes a file's name
            raise PayloadError(f"there is no stage {stage[:40]!r} of a model")
        if vector.shape != (length,) or length > SAMPLES * SAMPLES or not vector.is_floating_point():
            raise PayloadError(f"a signature of the shape {tuple(vector.shape)} does not go with those of others")
    return length
