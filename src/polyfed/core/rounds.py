"""The round loop. Runs, the battery of method checks and benchmarks all use this one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from polyfed import profiling
from polyfed.core.codec import decode, encode
from polyfed.core.cohort import Cohort
from polyfed.core.door import Door, OutlierRepliesError, TooFewRepliesError
from polyfed.core.evaluation import Evaluation
from polyfed.core.finite_values import check_finite
from polyfed.core.frame_digest import XXH3
from polyfed.core.method import Method
from polyfed.core.payload import State
from polyfed.core.round_stats import RoundStats
from polyfed.core.server import Server
from polyfed.errors import PayloadError, PolyfedError
from polyfed.training.metrics import CONFUSION


def initialise(method: Method, server: Server) -> Server:
    """Run the method's `init`, once before the first round, and return the server."""
    server.round = 0
    method.init(server)
    server.state = server.place.state(normalise_state(server.state))
    return server


def normalise_state(state: State) -> State:
    """Return the state as a checkpoint would restore it, so that resumed runs see the same memory layouts.

    Raise PayloadError if the state cannot be saved. It is better to fail after the round that produced it than when
    the next checkpoint is due.
    """
    return dict(decode(encode(state, XXH3).data))


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Use one torch thread inside the context: sums over several threads depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class RoundResult:
    """Outcome of one round."""

    number: int
    selected: tuple[str, ...]  # clients of the round
    evaluation: Evaluation  # empty if the round was not evaluated
    stats: RoundStats
    seconds: float


def _is_final(error: Exception) -> bool:
    """Return whether an error is addressed to the user. Only PayloadError can come from a client's reply."""
    return isinstance(error, PolyfedError) and not isinstance(error, PayloadError)


@dataclass
class RoundLoop:
    """Rounds of a method with one server and all of its clients. All state is in the server and the door's ledger."""

    method: Method
    server: Server
    door: Door
    select: Callable[[int], tuple[str, ...]] | None = None  # clients of a round; None: all
    measures: tuple[str, ...] = ()  # what evaluations measure
    metrics: tuple[str, ...] = ()  # besides accuracy; confusion matrices are counted in the last round only
    evaluate_every: int = 1  # the last round is always evaluated
    histograms: bool = False  # whether evaluated rounds record histograms of the server's update
    probe: Callable[[tuple[str, ...]], None] | None = None  # called with the clients of every evaluated round
    repeats: int = 0  # how often a round with too few replies is repeated
    on_repeat: Callable[[str], None] | None = None
    clients: tuple[str, ...] = field(init=False)
    _saved_state: bytes = field(default=b"", init=False, repr=False)  # the server's state after the last round

    def __post_init__(self) -> None:
        self.clients = tuple(profile.name for profile in self.server.roster)
        self.door.place = self.server.place

    def run_round(self, number: int) -> RoundResult:
        """Run one round. Repeat it from its start without clients whose replies make it fail, as long as enough
        clients are left, and if too few clients answered and repeats are left."""
        before = self._saved_state or encode(self.server.state, XXH3).data
        repeats, last_error = self.repeats, ""
        while True:
            try:
                with profiling.span("server", f"round {number}"):
                    return self._attempt(number)
            except TooFewRepliesError as error:
                if not repeats:
                    raise
                repeats -= 1
                self._note(f"{error}; the round is repeated")
            except OutlierRepliesError as error:
                self._reject(number, error.reasons)
            except Exception as error:
                # The method may have failed because of one reply. If it fails in the same way without this reply,
                # then it has a fault of its own. Errors for the user are never caused by replies.
                reasons = {} if _is_final(error) or repr(error) == last_error else self._suspects(error)
                if not reasons:
                    raise
                last_error = repr(error)
                self._reject(number, reasons)
            self.door.evaluator.wait()
            self.door.undo_round()
            self.server.state = self.server.place.state(dict(decode(before)))

    def _suspects(self, error: Exception) -> dict[str, str]:
        """Return the client whose reply probably made the server's part of the round fail, with the reason."""
        found = self.door.magnitudes.most_extreme()
        if found is not None:
            return dict([found])
        client = self.door.current_client  # the method failed while it processed this client's reply
        return {} if client is None else {client: f"its reply could not be used: {type(error).__name__}"}

    def _reject(self, number: int, reasons: dict[str, str]) -> None:
        for client, reason in reasons.items():
            self.door.reject(client, reason)
            self._note(f"round {number} is repeated without client {client}: {reason}")

    def _note(self, sentence: str) -> None:
        if self.on_repeat is not None:
            self.on_repeat(sentence)

    def train(self, cohort: Cohort) -> None:
        """Run the method's part of a round."""
        self.method.round(self.server, cohort)

    def _attempt(self, number: int) -> RoundResult:
        method, server, door = self.method, self.server, self.door
        door.begin_round(number)
        server.round, server.events, server.artifacts = number, [], {}
        last = number == server.rounds
        due = last or number % self.evaluate_every == 0
        server.histograms = due and self.histograms
        wanted = self.measures if due else ()
        measured: set[str] = set()
        metrics = tuple(name for name in self.metrics if last or name != CONFUSION)
        evaluations: list[Future[Evaluation]] = []
        finishes = last and type(method).finish is not Method.finish
        door.early.begin_round(() if finishes else wanted, metrics)
        started = time.perf_counter()

        def measure(names: tuple[str, ...]) -> None:
            chosen = tuple(name for name in names if name in wanted and name not in measured)
            if chosen:
                measured.update(chosen)
                evaluations.append(door.evaluator.start(self.clients, chosen, method.publish(server), metrics))

        selected = self.select(number) if self.select is not None else self.clients
        self.train(Cohort(door, selected, measure))
        if self.door.magnitudes.most_extreme() is not None:
            check_finite(server.state)  # otherwise the round is repeated without the reply that stands out
        if last:
            if finishes:
                measured.clear()  # the last round is evaluated after `finish`
            method.finish(server, Cohort(door, self.clients, measure))
        measure(wanted)
        door.evaluator.wait()
        if due and self.probe is not None:
            self.probe(selected)
        self._saved_state = encode(server.state, XXH3).data
        server.state = server.place.state(dict(decode(self._saved_state)))
        for note in door.stats.notes:
            self._note(note)
        measurements = Evaluation()
        for evaluation in evaluations:
            measurements.update(evaluation.result())
        return RoundResult(number, selected, measurements, door.stats, time.perf_counter() - started)
