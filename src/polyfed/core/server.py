"""The server for the length of one round: what it knows of its clients, its memory, and its random streams."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from polyfed.core import rng
from polyfed.core.payload import Payload, Scalar, State, view
from polyfed.core.profile import Profile
from polyfed.models.split import SplitModel

Event = dict[str, Scalar | list[float] | list[str]]


@dataclass
class Server:
    """The server's side. All that it keeps between rounds is `state`."""

    roster: tuple[Profile, ...]
    classes: int
    rounds: int
    seed: int
    build: Callable[[str], SplitModel]  # an architecture from its spec, with initial weights common to all parties
    state: State = field(default_factory=dict)
    round: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def memory(self) -> Payload:
        """Typed access to `state`."""
        return view(self.state)

    @property
    def features(self) -> int:
        """The common feature width; methods that use it need it to be common."""
        return self.roster[0].features

    @property
    def smallest(self) -> Profile:
        """The client with the fewest parameters: its architecture is the auxiliary one, unless a method is told."""
        return min(self.roster, key=lambda p: sum(math.prod(shape) for _, shape, _ in p.model))

    def stream(self, purpose: str) -> torch.Generator:
        """The server's random stream of this round for a purpose."""
        return rng.generator(self.seed, purpose, "server", self.round)

    def record(self, kind: str, **facts: Scalar | list[float] | list[str]) -> None:
        """Note something for the run's events, for a figure to be drawn from."""
        self.events.append({"event": kind, "round": self.round, **facts})
