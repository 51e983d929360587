"""Rounds on the serial engine with any clients: the loop of a real run, without a run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyfed.core.client import Client
from polyfed.core.client_evaluation import MEASURES
from polyfed.core.client_host import ClientMaker, Host
from polyfed.core.client_profile import Profile
from polyfed.core.codec import decode
from polyfed.core.cohort import Cohort
from polyfed.core.door import Door
from polyfed.core.engine import INITIAL, Engine, FrameBytes, StateStore
from polyfed.core.evaluation import Counts
from polyfed.core.guard import Guard
from polyfed.core.joined_bytes import join
from polyfed.core.ledger import Ledger
from polyfed.core.method import Method
from polyfed.core.payload import Payload, State
from polyfed.core.place import Place
from polyfed.core.round_stats import RoundStats
from polyfed.core.rounds import RoundLoop, initialise, one_torch_thread
from polyfed.core.server import Server
from polyfed.core.state_digest import content_digests
from polyfed.engines.serial import SerialEngine
from polyfed.federation.summary import state_hash
from polyfed.models.split import SplitModel
from polyfed.training import Samples

WrapEngine = Callable[[Engine], Engine]  # puts a wrapper around the serial engine


class MemoryStore:
    """Client states in memory."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int], bytes] = {}

    def write(self, client: str, version: int, frame: FrameBytes, discard: Sequence[int] = ()) -> None:
        self._frames[client, version] = join(frame)
        for old in discard:
            self._frames.pop((client, old), None)

    def read(self, client: str, version: int) -> bytes:
        return self._frames[client, version]


@dataclass
class InMemoryClients:
    """Clients from functions, each of which creates one client."""

    method: Method
    clients: Sequence[Callable[[], Client]]
    seed: int = 0
    global_test: Samples | None = None
    guard: Guard | None = None
    secret: str = ""
    place: Place = field(default_factory=Place)

    def make_client(self, name: str) -> Client:
        return next(client for client in (make() for make in self.clients) if client.name == name)

    def model(self, spec: str) -> SplitModel:
        """Return the first client's model, which the server starts from."""
        return self.clients[0]().model

    def roster(self) -> tuple[Profile, ...]:
        return tuple(make().profile for make in self.clients)

    def server(self, rounds: int) -> Server:
        """Return the server of these clients before `init`."""
        roster = self.roster()
        return Server(roster, roster[0].classes, rounds, self.seed, self.model)


@dataclass
class Outcome:
    """Final states, statistics and accuracies of some rounds."""

    server: State
    ledger: Ledger
    store: StateStore
    round_stats: list[RoundStats] = field(default_factory=list)
    hash: str = ""
    accuracy: Counts = field(default_factory=dict)
    after_rounds: list[dict[str, str]] = field(default_factory=list)  # client state digests, before `finish`

    @property
    def failures(self) -> list[dict[str, object]]:
        return [failure for stats in self.round_stats for failure in stats.failures]

    def checked(self) -> Outcome:
        """Return this outcome. Raise AssertionError if a client failed."""
        for failure in self.failures:
            raise AssertionError(
                f"client {failure['client']} failed in round {failure['round']}: {failure['message']}"
            )
        return self

    def client(self, name: str) -> Payload:
        """Return the final `model` and `state` of a client that was called at least once."""
        return decode(self.store.read(name, self.ledger.versions.get(name, INITIAL)))


@dataclass
class _RecordingLoop(RoundLoop):
    """A round loop that records the digests of client states after every round, before `finish`."""

    digests: list[dict[str, str]] = field(default_factory=list)

    def train(self, cohort: Cohort) -> None:
        super().train(cohort)
        self.digests.append(dict(self.door.ledger.digests))


def run_rounds(clients: InMemoryClients, rounds: int = 1, **options: Any) -> Outcome:
    """Run rounds with clients from functions. The options are those of `run_on_serial`."""
    return run_on_serial(clients, clients.server(rounds), **options)


def run_on_serial(
    maker: ClientMaker,
    server: Server,
    *,
    wrap: WrapEngine | None = None,
    evaluate: bool = False,
    memory: int = 1 << 30,
    selected: Callable[[int], tuple[str, ...]] | None = None,
    store: StateStore | None = None,
    max_ratio: float | None = None,
    evaluate_every: int = 1,
) -> Outcome:
    """Run all rounds of a server on the serial engine, or on the engine that `wrap` puts around it.

    With `evaluate`, clients are evaluated before the first round, after every `evaluate_every` rounds and after the
    last one. `selected` gives the clients of a round. `max_ratio` is `failures.max_ratio` of the config.
    """
    states = store or MemoryStore()
    method = maker.method
    engine: Engine = SerialEngine(Host(maker, states, memory, 1 << 30))
    door = Door(method, wrap(engine) if wrap else engine, server.roster, max_ratio=max_ratio)
    measures = MEASURES if evaluate else ()
    loop = _RecordingLoop(method, server, door, select=selected, measures=measures, evaluate_every=evaluate_every)
    outcome = Outcome(server.state, door.ledger, states)
    with one_torch_thread():
        initialise(method, server)
        if evaluate:
            outcome.accuracy |= door.evaluator.evaluate(loop.clients, MEASURES, method.publish(server)).counts
        for number in range(1, server.rounds + 1):
            result = loop.run_round(number)
            outcome.round_stats.append(result.stats)
            outcome.accuracy |= result.evaluation.counts
    outcome.server, outcome.ledger, outcome.after_rounds = server.state, door.ledger, loop.digests
    outcome.hash = state_hash(loop.clients, server.state, content_digests(states, door.ledger.versions))
    return outcome
