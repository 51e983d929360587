"""What every participant of a federation derives from the config alone: client names, participation, privacy, models.

`ServerFederation` adds what the server knows of its clients. A site that runs on its own needs only this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from polyfed.config import Config
from polyfed.core import rng
from polyfed.core.method import Method
from polyfed.core.place import Place
from polyfed.guards.exposure import exposed_fields
from polyfed.guards.privacy import PrivacyGuard
from polyfed.guards.protections import Schedule, resolve
from polyfed.models import ModelSpec, SplitModel
from polyfed.models.templates import build_channels_last
from polyfed.runs.secret import derive_key
from polyfed.training import Samples, TrainSettings


class FederationBase(ABC):
    """The part of a federation that server, workers and sites share."""

    config: Config
    method: Method
    global_test: Samples | None
    multipliers: Mapping[str, float] | None = None  # noise multipliers by field, if they were calibrated elsewhere
    place: Place = Place()  # where this process computes with clients
    secret: str = ""  # of a site that runs on its own, so that no other participant can reproduce its noise

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of every image: channels, height, width."""

    @property
    @abstractmethod
    def classes(self) -> int: ...

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def training(self) -> TrainSettings:
        return TrainSettings(**self.config.train.model_dump())

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self.config.client_names

    @cached_property
    def positions(self) -> dict[str, int]:
        """Index of each client among all clients, by name."""
        return {name: k for k, name in enumerate(self.names)}

    def selected_clients(self, number: int) -> tuple[str, ...]:
        """Return the clients of a round, in their fixed order."""
        names, count = self.names, self.config.per_round
        if count == len(names):
            return names
        stream = rng.numpy_generator(self.seed, "participation", number)
        return tuple(names[k] for k in sorted(stream.choice(len(names), size=count, replace=False).tolist()))

    @cached_property
    def guard(self) -> PrivacyGuard | None:
        """The guard that clips and perturbs uploads, or None if the config has no `privacy`."""
        if not self.config.privacy:
            return None
        rounds_by_client = Counter(
            name for number in range(1, self.config.rounds + 1) for name in self.selected_clients(number)
        )
        tries = self.config.failures.repeats + 1 if self.config.failures.on_too_few == "repeat" else 1
        schedule = Schedule(max(rounds_by_client.values()), tries)
        # one secret for each run: no two runs of a site use the same noise
        secret = derive_key(self.secret, "noise", self.config.run_name, self.config.hash())
        protections = resolve(self.config.privacy, self.method, schedule, self.multipliers)
        return PrivacyGuard(protections, exposed_fields(self.method, protections), secret)

    def model(self, spec: ModelSpec, *stream: str) -> SplitModel:
        """Build an architecture with initial weights from a random stream."""
        with rng.seeded(self.seed, "init", *stream):
            model = build_channels_last(spec, shape=self.shape, classes=self.classes)
        model = self.place.module(model)
        if self.config.train.compile:
            for part in (model.backbone, model.head):
                part.compile()
        return model

    def common_model(self, spec: str) -> SplitModel:
        """Build an architecture with the initial weights that it has at the server and at every client."""
        return self.model(ModelSpec.parse(spec), "common", spec)
