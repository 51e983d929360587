"""Evaluation at clients: accuracy counts, other metrics and probes of their models.

Evaluation is not part of a method's traffic: its bytes are not counted, and client states do not change.
"""

from __future__ import annotations

import contextvars
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from polyfed import profiling
from polyfed.core.client_profile import Layout, Profile
from polyfed.core.codec import Frame, decode, encode, encode_each
from polyfed.core.engine import INITIAL, Answer, Call, Task, rejection
from polyfed.core.evaluation_reply import EvaluationReply, read_reply
from polyfed.core.method import Outgoing
from polyfed.core.model_probes import SAMPLES, ProbeKind
from polyfed.core.payload import Payload
from polyfed.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

    from polyfed.core.door import Door

STEP = "evaluation"  # name of evaluations in the record of uploads
Counts = dict[str, dict[str, tuple[int, int]]]  # (correct predictions, samples) by measure and client


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured, by measure and client."""

    counts: Counts = field(default_factory=dict)
    # by measure, metric and client; None: not defined for the client's test samples
    metrics: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    confusion: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def update(self, other: Evaluation) -> None:
        """Add measures, or replace them by those of a later evaluation."""
        self.counts.update(other.counts)
        self.metrics.update(other.metrics)
        self.confusion.update(other.confusion)


class Evaluator:
    """Evaluation calls of a run. If the engine allows it, they run while the server continues."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._calls = 0
        self._thread = ThreadPoolExecutor(1, "evaluation")
        self._running: Future[Evaluation] | None = None

    def start(
        self, clients: Sequence[str], measures: tuple[str, ...], published: Outgoing, metrics: tuple[str, ...] = ()
    ) -> Future[Evaluation]:
        """Start an evaluation. Return at once if the engine runs it in other processes.

        The next call to clients waits for its end, because a client does one thing at a time.
        """
        self.wait()
        self._door.early.evaluated(measures, published)
        if self._door.engine.concurrent:
            context = contextvars.copy_context()  # with the recorder of this run's profile
            frames = self._encode(published)  # now, because the server may change what it published
            self._running = self._thread.submit(context.run, self._evaluate, clients, measures, frames, metrics)
            return self._running
        started = time.perf_counter()
        future: Future[Evaluation] = Future()
        future.set_result(self.evaluate(clients, measures, published, metrics))
        self._door.stats.evaluation_wait_seconds += time.perf_counter() - started
        return future

    def wait(self) -> None:
        """Wait for the running evaluation, if there is one."""
        if self._running is not None:
            started = time.perf_counter()
            running, self._running = self._running, None
            with profiling.span("wait", "wait for the evaluation"):
                running.result()
            self._door.stats.evaluation_wait_seconds += time.perf_counter() - started

    def evaluate(
        self, clients: Sequence[str], measures: tuple[str, ...], published: Outgoing, metrics: tuple[str, ...] = ()
    ) -> Evaluation:
        """Count correct predictions and compute metrics, by measure and client. A client that fails gets (0, 0)."""
        return self._evaluate(clients, measures, self._encode(published), metrics)

    def _encode(self, published: Outgoing) -> tuple[bytes, dict[str, Frame]]:
        """Return the encoded message to all clients, and those to single clients."""
        digest = self._door.digest
        return encode(published.shared, digest).data, encode_each(published.each, digest)

    def _evaluate(
        self,
        clients: Sequence[str],
        measures: tuple[str, ...],
        frames: tuple[bytes, dict[str, Frame]],
        metrics: tuple[str, ...],
    ) -> Evaluation:
        door = self._door
        started = time.perf_counter()
        shared, own = frames
        replies: dict[tuple[str, str], EvaluationReply] = {}  # by measure and client
        same = door.method.predicts_from_published()
        representative = self._representatives(clients, own) if same else {name: name for name in clients}
        distinct = list(dict.fromkeys(representative.values()))
        # The personal measure runs at every client. The global one runs once for clients that predict the same.
        requests = [(clients, tuple(m for m in measures if m != "global")), (distinct, ("global",))]
        if "global" not in measures or len(distinct) == len(clients):
            requests = [(clients, measures)]
        for names, requested in requests:
            self._calls += 1
            call = Call(-self._calls, door.round, measures=requested, metrics=metrics)
            names_of_measures = self._names(requested)
            for answer in self._answers(call, shared, own, names if requested else ()):
                if answer.failure is not None:
                    door.record_failure(call, answer.client, answer.failure)
                    continue
                try:
                    reply = read_reply(
                        answer.frame,
                        door.read_header(answer.frame),
                        names_of_measures,
                        metrics,
                        door.profiles[answer.client].classes,
                    )
                except Exception as error:  # whatever a reply provokes is a failure of its client
                    door.record_failure(call, answer.client, rejection(error))
                    continue
                for name in reply.counts:
                    replies[name, answer.client] = reply
                if reply.sizes:
                    door.stats.uploads.append(
                        {"client": answer.client, "step": STEP, "fields": reply.sizes, "shapes": reply.shapes}
                    )
        door.stats.evaluation_seconds += time.perf_counter() - started

        return _collect(replies, clients, representative)

    def _answers(
        self, call: Call, shared: bytes, own: Mapping[str, Frame], clients: Sequence[str]
    ) -> Iterator[Answer]:
        """Yield the answers of clients in order. Clients that were evaluated after their last step are not asked."""
        door = self._door
        tasks = {
            name: Task(name, door.ledger.versions.get(name, INITIAL), own[name].data if name in own else b"")
            for name in clients
        }
        early = {
            name: frame
            for name, task in tasks.items()
            if (frame := door.early.result(name, task.base, call.measures, call.metrics)) is not None
        }
        missing = [task for name, task in tasks.items() if name not in early]
        answers = door.engine.call(call, shared, missing) if missing else iter(())
        answers = profiling.spans("transfer", "evaluation", answers)
        for name in clients:
            yield Answer(name, early[name]) if name in early else next(answers)
        next(answers, None)  # an engine ends its call after the last answer

    def probe(self, clients: Sequence[str], kind: ProbeKind) -> Iterator[tuple[str, Payload]]:
        """Yield what clients' models compute on common test samples, by client. Clients that failed are left out."""
        self.wait()
        door = self._door
        started, self._calls = time.perf_counter(), self._calls + 1
        call = Call(-self._calls, door.round, measures=(kind,))
        tasks = [Task(name, door.ledger.versions.get(name, INITIAL)) for name in clients]
        length, message = 0, encode({}, door.digest).data
        answers = profiling.spans("transfer", f"probe {kind}", door.engine.call(call, message, tasks))
        for answer in answers:
            if answer.failure is not None:
                door.record_failure(call, answer.client, answer.failure)
                continue
            try:
                reply = decode(answer.frame, door.read_header(answer.frame))
                length = _check_probe(reply, kind, door.profiles[answer.client], length)
            except Exception as error:
                door.record_failure(call, answer.client, rejection(error))
            else:
                yield answer.client, reply
        seconds = time.perf_counter() - started
        door.stats.evaluation_seconds += seconds
        door.stats.evaluation_wait_seconds += seconds

    def _representatives(self, clients: Sequence[str], own: Mapping[str, Frame]) -> dict[str, str]:
        """Map every client to the first one with the same architecture and the same message."""
        first: dict[tuple[Layout, str], str] = {}
        return {
            name: first.setdefault((self._door.profiles[name].model, own[name].digest if name in own else ""), name)
            for name in clients
        }

    def _names(self, measures: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that an evaluation may report: each measure, with each way of predicting."""
        suffixes = ("", *(f" by {way}" for way in self._door.method.also_predict()))
        return tuple(measure + suffix for measure in measures for suffix in suffixes)


def _collect(
    replies: Mapping[tuple[str, str], EvaluationReply], clients: Sequence[str], representative: Mapping[str, str]
) -> Evaluation:
    """Order replies by measure and client. On the common test set, representatives reply for clients like them."""
    result = Evaluation()
    for name in dict.fromkeys(name for name, _ in replies):
        sources = {client: representative[client] if name.startswith("global") else client for client in clients}
        found = {client: replies.get((name, source), EvaluationReply()) for client, source in sources.items()}
        result.counts[name] = {client: reply.counts.get(name, (0, 0)) for client, reply in found.items()}
        for metric in dict.fromkeys(m for reply in found.values() for m in reply.metrics.get(name, ())):
            values = {client: reply.metrics.get(name, {}).get(metric) for client, reply in found.items()}
            result.metrics.setdefault(name, {})[metric] = values
        matrices = {client: reply.confusion[name] for client, reply in found.items() if name in reply.confusion}
        if matrices:
            result.confusion[name] = matrices
    return result


def _check_probe(reply: Payload, kind: ProbeKind, profile: Profile, length: int) -> int:
    """Raise PayloadError if a probe's reply is invalid. Return the length that signatures of all clients share."""
    if kind == "features":
        vectors, classes = reply.tensor("vectors"), reply.tensor("classes")
        rows = len(classes) if classes.ndim == 1 else 0
        if not 1 <= rows <= SAMPLES or vectors.shape != (rows, profile.features) or not vectors.is_floating_point():
            raise PayloadError(f"features have the shape {tuple(vectors.shape)}, which was not requested")
        return length
    for stage, vector in reply.weights("signatures").items():
        length = length or vector.numel()
        if not re.fullmatch(r"[a-z]+( [0-9]{1,4})?", stage):  # it becomes a file name
            raise PayloadError(f"a model has no stage {stage[:40]!r}")
        if vector.shape != (length,) or length > SAMPLES * SAMPLES or not vector.is_floating_point():
            raise PayloadError(f"a signature of shape {tuple(vector.shape)} does not match those of other clients")
    return length
