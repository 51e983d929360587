"""The server that a round receives: client profiles, state and random streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyfed.core import rng
from polyfed.core.aggregation import MEAN, Aggregation
from polyfed.core.client_profile import Profile
from polyfed.core.filter import ServerFilter
from polyfed.core.payload import Payload, Scalar, State, view
from polyfed.core.place import Place
from polyfed.models.slicing.family import Family
from polyfed.models.split import SplitModel

Event = dict[str, Scalar | list[float] | list[str]]


@dataclass
class Server:
    """The server of a federation. Only `state` is kept between rounds."""

    roster: tuple[Profile, ...]
    classes: int
    rounds: int
    seed: int
    build: Callable[[str], SplitModel]  # builds an architecture, with initial weights common to all clients
    state: State = field(default_factory=dict)
    round: int = 0
    events: list[Event] = field(default_factory=list)
    artifacts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    family: Family | None = None  # the server model and its sub-models; None: one architecture
    filter: ServerFilter | None = None  # applied to updates of the server model
    aggregation: Aggregation = MEAN  # how values of several clients are combined
    histograms: bool = False  # whether to save histograms of this round's update
    place: Place = field(default_factory=Place)
    _by_name: dict[str, Profile] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of the server's models, its state and the replies that it receives."""
        return self.place.device

    @property
    def memory(self) -> Payload:
        """Typed access to `state`."""
        return view(self.state)

    @property
    def features(self) -> int:
        """The feature width, for methods that require the same width at all clients."""
        return self.roster[0].features

    @property
    def smallest(self) -> Profile:
        """The client with the fewest parameters. Its architecture is the default of auxiliary models."""
        return min(self.roster, key=lambda profile: profile.size)

    def profile(self, name: str) -> Profile:
        """Return the profile of a client."""
        if not self._by_name:
            self._by_name.update((profile.name, profile) for profile in self.roster)
        return self._by_name[name]

    def stream(self, purpose: str) -> torch.Generator:
        """Return a random generator for a purpose, specific to the server and this round."""
        return rng.generator(self.seed, purpose, "server", self.round)

    def record(self, kind: str, **facts: Scalar | list[float] | list[str]) -> None:
        """Record values of this round in the run's events, for figures."""
        self.events.append({"event": kind, "round": self.round, **facts})

    def save_artifact(self, kind: str, **tensors: Tensor) -> None:
        """Save tensors of this round in the run folder, for figures."""
        self.artifacts[kind] = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
