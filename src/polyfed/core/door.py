"""The door: the server's side of every call to clients.

It numbers calls, encodes messages, checks replies, counts bytes and records failures. It lives as long as a run. Only
its ledger must survive a restart: the number of calls so far and the state version of every client.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from polyfed import profiling
from polyfed.core.client_profile import Profile
from polyfed.core.codec import decode, encode, encode_each
from polyfed.core.early_evaluations import EarlyEvaluations
from polyfed.core.engine import INITIAL, Answer, Call, Engine, Failure, Task, rejection
from polyfed.core.evaluation import Evaluator
from polyfed.core.finite_values import check_finite
from polyfed.core.frame_digest import BLAKE3, XXH3, FrameDigest
from polyfed.core.ledger import Ledger
from polyfed.core.message_header import MessageHeader, read_header
from polyfed.core.method import Method, Outgoing
from polyfed.core.payload import Payload
from polyfed.core.place import Place
from polyfed.core.reply_magnitudes import ReplyMagnitudes
from polyfed.core.round_stats import CallTimes, RoundStats
from polyfed.core.schema import TreeField, check_header, check_values
from polyfed.core.step import Messages, combined
from polyfed.errors import PayloadError, RunError

OnReply = Callable[[Call, str, bytes], None]  # (call, client, encoded reply)


class TooFewRepliesError(RunError):
    """A call received fewer replies than the run requires."""


class OutlierRepliesError(RunError):
    """Replies of a call hold values far from those of the other clients. The round is repeated without them."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"client {client}: {reason}" for client, reason in reasons.items()))
        self.reasons = dict(reasons)


def replies_needed(min_replies: float, clients: int) -> int:
    """Return how many of the clients of a call must reply: a share of them (float) or a number (int)."""
    if isinstance(min_replies, float):
        return math.ceil(min_replies * clients)
    return min(min_replies, clients)


class Door:
    """Connection between a method's rounds and an engine."""

    def __init__(
        self,
        method: Method,
        engine: Engine,
        roster: Sequence[Profile],
        *,
        min_replies: float = 1,
        max_ratio: float | None = None,
        message_limit: int = 4 << 30,
        on_reply: OnReply | None = None,
    ) -> None:
        self.method = method
        self.engine = engine
        self.profiles = {profile.name: profile for profile in roster}
        self.message_limit = message_limit
        self.ledger = Ledger()
        self.round_start = Ledger()  # restored when a round is repeated
        self.checkpoint_versions: list[Mapping[str, int]] = []  # states that checkpoints refer to, by client
        self.stats = RoundStats()
        self.place = Place()  # where the server computes with replies
        self.round = 0
        self.evaluator = Evaluator(self)
        self.early = EarlyEvaluations(method, engine.evaluates_after_steps)
        self.rejected: set[str] = set()  # clients that are left out of the repeated round
        self.magnitudes = ReplyMagnitudes()  # of the replies of this attempt
        self.current_client: str | None = None  # whose reply the method is processing
        self._min_replies = min_replies
        self._max_ratio = max_ratio  # of a reply's values to the median over clients; None: unlimited
        self._on_reply = on_reply  # called for every accepted reply
        self._calls_of_step: dict[str, int] = {}
        self._reading = False  # whether replies of a call are still being read

    @property
    def digest(self) -> FrameDigest:
        """The digest of messages: a fast checksum unless they cross a trust boundary."""
        return XXH3 if self.engine.trusted else BLAKE3

    def read_header(self, frame: bytes) -> MessageHeader:
        """Check the size, digest and headers of a reply, and return its header."""
        return read_header(frame, limit=self.message_limit, cryptographic=not self.engine.trusted)

    def begin_round(self, number: int) -> None:
        """Start a round with fresh statistics. Keep the statistics if the round is repeated."""
        if number != self.round:
            self.stats = RoundStats()
            self.rejected = set()
        self.round = number
        self.magnitudes, self.current_client = ReplyMagnitudes(), None
        self.round_start = self.ledger.copy()
        self._calls_of_step = {}

    def undo_round(self) -> None:
        """Return every client to its state at the start of the round. Call numbers are never reused."""
        calls, alive = self.ledger.calls, self.ledger.alive
        self.stats.trained = []  # the cost of the undone attempt stays
        self.ledger = self.round_start.copy()
        self.ledger.calls, self.ledger.alive = calls, alive

    def call(self, steps: tuple[str, ...], clients: Sequence[str], out: Outgoing) -> Iterator[tuple[str, Payload]]:
        """Run steps on clients and yield the replies in client order. Clients that failed are left out."""
        if self._reading:
            raise RunError(
                "a call was made while the replies of another were still being read; use cohort.call there"
            )
        self.evaluator.wait()
        messages = combined(self.method, steps)
        unknown = sorted(out.each.keys() - set(clients))
        if unknown:
            raise RunError(f"a payload is addressed to client {unknown[0]}, which is not in the cohort")
        present = [name for name in clients if name not in self.rejected]
        self.ledger.calls += 1
        labels = tuple(self._label(name) for name in steps)
        call = Call(self.ledger.calls, self.round, steps, labels, *self.early.next_call())
        try:
            check_finite(out.shared)
        except PayloadError as error:  # every client would refuse it
            raise PayloadError(f"round {self.round}: the server's message to all clients: {error}") from None
        shared = encode(out.shared, self.digest)
        own = encode_each(out.each, self.digest)
        tasks = [
            Task(
                name,
                self.ledger.versions.get(name, INITIAL),
                own[name].data if name in own else b"",
                self._discardable(name),
            )
            for name in present
        ]
        for name in present:
            versions = self.ledger.alive.setdefault(name, [])
            if call.number not in versions:
                versions.append(call.number)
            frames = [shared, own[name]] if name in own else [shared]
            for frame in frames:
                for field_name, size in frame.fields.items():
                    self.stats.down[field_name] = self.stats.down.get(field_name, 0) + size
                self.stats.overhead_down += frame.overhead
        compared = any(isinstance(kind, TreeField) and kind.like for kind in messages.up.values())
        sent = read_header(shared.data) if compared else None
        replied, times = 0, CallTimes(self.stats)
        answers = self.engine.call(call, shared.data, tasks)
        answers = profiling.spans("transfer", f"call {call.number}: {'+'.join(steps)}", answers)
        for answer in self._timed(answers):
            times.add(answer)
            down = sent.joined(read_header(own[answer.client].data)) if sent and answer.client in own else sent
            reply = self._accept(call, answer, messages, down)
            if reply is not None:
                replied += 1
                self.current_client = answer.client
                yield answer.client, reply
        self.current_client = None
        times.close()
        if self._max_ratio is not None:
            outliers = self.magnitudes.outliers("+".join(call.labels), self._max_ratio)
            if outliers:
                raise OutlierRepliesError(outliers)
        needed = replies_needed(self._min_replies, len(clients))
        if replied < needed:
            first = next((f for f in self.stats.failures if f["call"] == call.number), {})
            raise TooFewRepliesError(
                f"round {self.round}: {replied} of {len(clients)} clients answered '{'+'.join(steps)}', at least "
                f"{needed} must; the first failure is client {first.get('client')}: {first.get('message')} "
                "(failures.min_replies sets how many must)"
            )

    def _timed(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Yield answers and add up the time spent waiting for them. No other call is allowed before the last one."""
        self._reading = True
        try:
            while True:
                started = time.perf_counter()
                answer = next(answers, None)
                self.stats.call_seconds += time.perf_counter() - started
                if answer is None:
                    return
                yield answer
        finally:
            self._reading = False

    def _accept(self, call: Call, answer: Answer, messages: Messages, sent: MessageHeader | None) -> Payload | None:
        """Check and count one answer. An invalid answer is recorded as a failure; the client keeps its old state."""
        self.stats.client_seconds += answer.seconds
        self.stats.notes += answer.notes
        failure = answer.failure
        reply: Payload | None = None
        sizes: dict[str, int] = {}
        shapes: dict[str, str] = {}
        largest: dict[str, float] = {}
        if failure is None:
            profile = self.profiles[answer.client]
            try:
                header = self.read_header(answer.frame)
                check_header(header, messages.up, self.method, profile, sent)
                reply = decode(answer.frame, header)
                largest = check_values(reply, messages.up, self.method, profile)
                reply = self.place.payload(reply)
                sizes, shapes = header.sizes(), header.shapes()
            except Exception as error:  # whatever a reply provokes is a failure of its client
                failure, reply = rejection(error), None
        if failure is not None or reply is None:
            self.stats.overhead_up += len(answer.frame)  # an invalid reply was sent all the same
            self.record_failure(call, answer.client, failure or Failure("unavailable", "no answer"))
            return None
        for name, size in sizes.items():
            self.stats.up[name] = self.stats.up.get(name, 0) + size
        self.stats.overhead_up += len(answer.frame) - sum(sizes.values())
        self.stats.uploads.append(
            {"client": answer.client, "step": "+".join(call.steps), "fields": sizes, "shapes": shapes}
        )
        if self._on_reply is not None:
            self._on_reply(call, answer.client, answer.frame)
        self.stats.trained.extend(answer.trained)
        self.magnitudes.add("+".join(call.labels), answer.client, largest)
        self.early.add(call, answer.client, answer.evaluation)
        self.ledger.versions[answer.client] = call.number
        self.ledger.digests[answer.client] = answer.digest
        return reply

    def reject(self, client: str, reason: str) -> None:
        """Leave a client out of this round, which is then repeated, and record the reason."""
        self.rejected.add(client)
        self.record_failure(Call(self.ledger.calls, self.round, ("round",)), client, Failure("rejected", reason))

    def record_failure(self, call: Call, client: str, failure: Failure) -> None:
        """Record that a client gave no usable answer. Raise RunError if a state could not be stored."""
        if failure.kind == "storage":
            raise RunError(f"round {self.round}: {failure.message}")  # a state that is not stored would be lost
        self.stats.failures.append(
            {
                "round": self.round,
                "client": client,
                "call": call.number,
                "steps": list(call.steps or ("evaluate",)),
                "kind": failure.kind,
                "message": failure.message,
                "detail": failure.detail,
            }
        )

    def _label(self, step: str) -> str:
        count = self._calls_of_step[step] = self._calls_of_step.get(step, 0) + 1
        return step if count == 1 else f"{step}.{count}"

    def _discardable(self, client: str) -> tuple[int, ...]:
        """Return stored versions of a client that neither this round, its start nor a checkpoint refers to."""
        needed = {ledger.versions.get(client, INITIAL) for ledger in (self.ledger, self.round_start)}
        needed |= {versions.get(client, INITIAL) for versions in self.checkpoint_versions}
        unused = tuple(v for v in self.ledger.alive.get(client, ()) if v not in needed)
        if unused:
            self.ledger.alive[client] = [v for v in self.ledger.alive[client] if v in needed]
        return unused
