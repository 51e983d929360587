"""Evaluation at clients: accuracy counts and probes of their models.

Evaluation is not part of a method's traffic: its bytes are not counted, and client states do not change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from polyfed.core.client_profile import Layout, Profile
from polyfed.core.codec import Frame, decode, encode, encode_each, read_header
from polyfed.core.engine import INITIAL, Call, Failure, Task
from polyfed.core.method import Outgoing
from polyfed.core.model_probes import SAMPLES, ProbeKind
from polyfed.core.payload import Payload
from polyfed.errors import PayloadError

if TYPE_CHECKING:
    from polyfed.core.door import Door

MAX_SAMPLES = 10**12  # largest number of samples that an evaluation may report
Counts = dict[str, dict[str, tuple[int, int]]]  # (correct predictions, samples) by measure and client


class Evaluator:
    """Evaluation calls of a run. If the engine allows it, they run while the server continues."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._calls = 0
        self._thread = ThreadPoolExecutor(1, "evaluation")
        self._running: Future[Counts] | None = None

    def start(self, clients: Sequence[str], measures: tuple[str, ...], published: Outgoing) -> Future[Counts]:
        """Start an evaluation. Return at once if the engine runs it in other processes.

        The next call to clients waits for its end, because a client does one thing at a time.
        """
        self.wait()
        if self._door.engine.concurrent:
            # a copy, because the server may change what it published
            frozen = Outgoing(decode(encode(published.shared).data), published.each)
            self._running = self._thread.submit(self.evaluate, clients, measures, frozen)
            return self._running
        started = time.perf_counter()
        future: Future[Counts] = Future()
        future.set_result(self.evaluate(clients, measures, published))
        self._door.stats.evaluation_wait_seconds += time.perf_counter() - started
        return future

    def wait(self) -> None:
        """Wait for the running evaluation, if there is one."""
        if self._running is not None:
            started = time.perf_counter()
            running, self._running = self._running, None
            running.result()
            self._door.stats.evaluation_wait_seconds += time.perf_counter() - started

    def evaluate(self, clients: Sequence[str], measures: tuple[str, ...], published: Outgoing) -> Counts:
        """Count correct predictions by measure and client. A client that fails gets (0, 0)."""
        door = self._door
        started = time.perf_counter()
        shared, own = encode(published.shared).data, encode_each(published.each)
        counts: Counts = {}
        same = door.method.predicts_from_published()
        representative = self._representatives(clients, own) if same else {name: name for name in clients}
        distinct = list(dict.fromkeys(representative.values()))
        # The personal measure runs at every client. The global one runs once for clients that predict the same.
        requests = [(clients, tuple(m for m in measures if m != "global")), (distinct, ("global",))]
        if "global" not in measures or len(distinct) == len(clients):
            requests = [(clients, measures)]
        for names, requested in requests:
            self._calls += 1
            call = Call(-self._calls, door.round, measures=requested)
            tasks = [
                Task(name, door.ledger.versions.get(name, INITIAL), own[name].data if name in own else b"")
                for name in (names if requested else ())
            ]
            for answer in door.engine.call(call, shared, tasks):
                if answer.failure is not None:
                    door.record_failure(call, answer.client, answer.failure)
                    continue
                try:
                    reported = _read_counts(answer.frame, door.message_limit, self._allowed_names(requested))
                except PayloadError as error:
                    door.record_failure(call, answer.client, Failure("refused", str(error)))
                    continue
                for name, count in reported.items():
                    counts.setdefault(name, {})[answer.client] = count
        door.stats.evaluation_seconds += time.perf_counter() - started

        def count_of(name: str, client: str) -> tuple[int, int]:
            source = representative[client] if name.startswith("global") else client
            return counts[name].get(source, (0, 0))

        return {name: {client: count_of(name, client) for client in clients} for name in counts}

    def probe(self, clients: Sequence[str], kind: ProbeKind) -> Iterator[tuple[str, Payload]]:
        """Yield what clients' models compute on common test samples, by client. Clients that failed are left out."""
        self.wait()
        door = self._door
        started, self._calls = time.perf_counter(), self._calls + 1
        call = Call(-self._calls, door.round, measures=(kind,))
        tasks = [Task(name, door.ledger.versions.get(name, INITIAL)) for name in clients]
        length = 0
        for answer in door.engine.call(call, encode({}).data, tasks):
            if answer.failure is not None:
                door.record_failure(call, answer.client, answer.failure)
                continue
            try:
                reply = decode(answer.frame, read_header(answer.frame, limit=door.message_limit))
                length = _check_probe(reply, kind, door.profiles[answer.client], length)
            except PayloadError as error:
                door.record_failure(call, answer.client, Failure("refused", str(error)))
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

    def _allowed_names(self, measures: tuple[str, ...]) -> frozenset[str]:
        """Return the names that an evaluation may report: each measure, with each way of predicting."""
        suffixes = ("", *(f" by {way}" for way in self._door.method.also_predict()))
        return frozenset(measure + suffix for measure in measures for suffix in suffixes)


def _read_counts(frame: bytes, limit: int, allowed: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Decode and check the counts of one client, by measure."""
    counts: dict[str, tuple[int, int]] = {}
    for name, value in decode(frame, read_header(frame, limit=limit)).items():
        if name not in allowed:
            raise PayloadError(f"an evaluation reports '{name[:40]}', which was not requested")
        entry = Payload(value if isinstance(value, Mapping) else {})
        correct, total = entry.number("correct"), entry.number("total")
        if not 0 <= correct <= total <= MAX_SAMPLES or int(correct) != correct or int(total) != total:
            raise PayloadError(f"an evaluation reports {correct:g} correct predictions of {total:g} samples")
        counts[name] = (int(correct), int(total))
    return counts


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
