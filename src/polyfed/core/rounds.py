"""The round loop. Runs, the battery of method checks and benchmarks all use this one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from polyfed.core.codec import decode, encode
from polyfed.core.cohort import Cohort
from polyfed.core.door import Door, TooFewRepliesError
from polyfed.core.evaluation import Evaluation
from polyfed.core.method import Method
from polyfed.core.payload import State
from polyfed.core.round_stats import RoundStats
from polyfed.core.server import Server
from polyfed.errors import RunError
from polyfed.training.metrics import CONFUSION


def initialise(method: Method, server: Server) -> Server:
    """Run the method's `init`, once before the first round, and return the server."""
    server.round = 0
    method.init(server)
    server.state = normalise_state(server.state)
    return server


def normalise_state(state: State) -> State:
    """Return the state as a checkpoint would restore it, so that resumed runs see the same memory layouts.

    Raise PayloadError if the state cannot be saved. It is better to fail after the round that produced it than when
    the next checkpoint is due.
    """
    return dict(decode(encode(state).data))


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

    def __post_init__(self) -> None:
        self.clients = tuple(profile.name for profile in self.server.roster)

    def run_round(self, number: int) -> RoundResult:
        """Run one round. Repeat it from its start if too few clients answered and repeats are left."""
        before = encode(self.server.state).data if self.repeats else b""
        for attempt in range(self.repeats + 1):
            try:
                return self._attempt(number)
            except TooFewRepliesError as error:
                if attempt == self.repeats:
                    raise
                if self.on_repeat is not None:
                    self.on_repeat(f"{error}; the round is repeated")
                self.door.undo_round()
                self.server.state = dict(decode(before))
        raise RunError(f"round {number} could not be finished")

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
        started = time.perf_counter()

        def measure(names: tuple[str, ...]) -> None:
            chosen = tuple(name for name in names if name in wanted and name not in measured)
            if chosen:
                measured.update(chosen)
                evaluations.append(door.evaluator.start(self.clients, chosen, method.publish(server), metrics))

        selected = self.select(number) if self.select is not None else self.clients
        self.train(Cohort(door, selected, measure))
        if last:
            if type(method).finish is not Method.finish:
                measured.clear()  # the last round is evaluated after `finish`
            method.finish(server, Cohort(door, self.clients, measure))
        measure(wanted)
        door.evaluator.wait()
        if due and self.probe is not None:
            self.probe(selected)
        server.state = normalise_state(server.state)
        measurements = Evaluation()
        for evaluation in evaluations:
            measurements.update(evaluation.result())
        return RoundResult(number, selected, measurements, door.stats, time.perf_counter() - started)
