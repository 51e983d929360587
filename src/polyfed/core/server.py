"""The server for the length of one round: what it knows of its clients, its memory, and its random streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyfed.core import rng
from polyfed.core.filter import ServerFilter
from polyfed.core.payload import Payload, Scalar, State, view
from polyfed.core.profile import Profile
from polyfed.models.slicing.family import Family
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
    artifacts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    family: Family | None = None  # one server model and its sub-models; None: all hold the same
    filter: ServerFilter | None = None  # what an update passes before it moves the server's model
    histograms: bool = False  # whether this round's update is kept as counts, per layer
    _by_name: dict[str, Profile] = field(default_factory=dict, repr=False)

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
        return min(self.roster, key=lambda profile: profile.size)

    def profile(self, name: str) -> Profile:
        """What is known of a client."""
        if not self._by_name:
            self._by_name.update((profile.name, profile) for profile in self.roster)
        return self._by_name[name]

    def stream(self, purpose: str) -> torch.Generator:
        """The server's random stream of this round for a purpose."""
        return rng.generator(self.seed, purpose, "server", self.round)

    def record(self, kind: str, **facts: Scalar | list[float] | list[str]) -> None:
        """Note something for the run's events, for a figure to be drawn from."""
        self.events.append({"event": kind, "round": self.round, **facts})

    def save_artifact(self, kind: str, **tensors: Tensor) -> None:
        """Save tensors of this round in the run folder, for figures."""
        self.artifacts[kind] = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
