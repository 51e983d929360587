"""Rounds on any engine and with any clients: what an experiment does, without files, config or repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polyfed.core.client import Client
from polyfed.core.codec import decode
from polyfed.core.cohort import Cohort
from polyfed.core.door import Door, Ledger, RoundStats
from polyfed.core.engine import INITIAL, Engine, StateStore
from polyfed.core.guard import Guard
from polyfed.core.host import ClientMaker, Host
from polyfed.core.method import Method
from polyfed.core.payload import Payload, State
from polyfed.core.profile import Profile
from polyfed.core.server import Server
from polyfed.engines.serial import SerialEngine
from polyfed.experiment import kept, one_torch_thread
from polyfed.federation.summary import state_hash
from polyfed.models.slicing import Family
from polyfed.models.split import SplitModel
from polyfed.training import Samples

# What may be done to the serial engine: something stands around it.
Wrap = Callable[[Engine], Engine]


class MemoryStore:
    """States in this process."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int], bytes] = {}

    def write(self, client: str, version: int, frame: bytes) -> None:
        self._frames[client, version] = frame

    def read(self, client: str, version: int) -> bytes:
        return self._frames[client, version]

    def discard(self, client: str, versions: Sequence[int]) -> None:
        for version in versions:
            self._frames.pop((client, version), None)


@dataclass
class InMemoryClients:
    """Clients that were made by hand, each by a function that makes it anew."""

    method: Method
    clients: Sequence[Callable[[], Client]]
    seed: int = 0
    global_test: Samples | None = None
    guard: Guard | None = None
    secret: str = ""

    def make_client(self, name: str) -> Client:
        return next(client for client in (make() for make in self.clients) if client.name == name)

    def model(self, spec: str) -> SplitModel:
        """What the server starts from: the first client's model."""
        return self.clients[0]().model

    def roster(self) -> tuple[Profile, ...]:
        return tuple(make().profile for make in self.clients)

    def server(self, rounds: int) -> Server:
        """Return the server of these clients before the first round."""
        roster = self.roster()
        return Server(roster, roster[0].classes, rounds, self.seed, self.model)


@dataclass
class Outcome:
    """What a run ended with."""

    server: State
    ledger: Ledger
    store: StateStore
    round_stats: list[RoundStats] = field(default_factory=list)
    hash: str = ""
    accuracy: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    after_rounds: list[dict[str, str]] = field(default_factory=list)  # the clients' digests, before the finish

    @property
    def failures(self) -> list[dict[str, object]]:
        return [failure for stats in self.round_stats for failure in stats.failures]

    def checked(self) -> Outcome:
        """This outcome, after making sure that no client failed."""
        for failure in self.failures:
            raise AssertionError(
                f"client {failure['client']} failed in round {failure['round']}: {failure['message']}"
            )
        return self

    def client(self, name: str) -> Payload:
        """The `model` and the `state` that a client ended with; it must have been called."""
        return decode(self.store.read(name, self.ledger.versions.get(name, INITIAL)))


@dataclass(frozen=True)
class Stage:
    """Who plays: the clients, what the server knows of them, and what it starts from."""

    maker: ClientMaker
    roster: tuple[Profile, ...]
    build: Callable[[str], SplitModel]
    family: Family | None = None


def run_rounds(
    on: Stage | InMemoryClients,
    rounds: int = 1,
    *,
    wrap: Wrap | None = None,
    evaluate: bool = False,
    memory: int = 1 << 30,
    selected: Callable[[int], tuple[str, ...]] | None = None,
    store: StateStore | None = None,
) -> Outcome:
    """All rounds on the serial engine, or on what `wrap` puts around it; `selected` says who is in a round."""
    if isinstance(on, InMemoryClients):
        on = Stage(on, on.roster(), on.model)
    states = store or MemoryStore()
    method = on.maker.method
    serial: Engine = SerialEngine(Host(on.maker, states, memory, 1 << 30))
    door = Door(method, wrap(serial) if wrap else serial, on.roster)
    server = Server(on.roster, on.roster[0].classes, rounds, on.maker.seed, on.build, family=on.family)
    everyone = tuple(profile.name for profile in on.roster)
    outcome = Outcome(server.state, door.ledger, states)

    def measure(names: tuple[str, ...]) -> None:
        if evaluate:
            outcome.accuracy |= door.measure(everyone, names, method.publish(server))

    with one_torch_thread():
        method.init(server)
        server.state = kept(server.state)
        measure(("personal", "global"))
        for number in range(1, rounds + 1):
            door.begin_round(number)
            server.round = number
            outcome.round_stats.append(door.stats)
            method.round(server, Cohort(door, selected(number) if selected else everyone, measure))
            outcome.after_rounds.append(dict(door.ledger.digests))
            if number == rounds:
                method.finish(server, Cohort(door, everyone, measure))
            measure(("personal", "global"))
            server.state = kept(server.state)
    outcome.server, outcome.ledger = server.state, door.ledger
    outcome.hash = state_hash(everyone, server.state, door.ledger.digests)
    return outcome
