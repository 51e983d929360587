"""What is known of a federation without its data: who takes part, with which models, by which method.

`Federation` has the data as well; a coordinator of sites that keep theirs has only this.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from polyfed import catalogue
from polyfed.config import Config
from polyfed.core import needs as needs_room
from polyfed.core import rng
from polyfed.core.filter import ServerFilter
from polyfed.core.method import Method
from polyfed.core.profile import Profile, layout
from polyfed.core.server import Server
from polyfed.errors import InputError, nearest
from polyfed.federation import probes, splitting
from polyfed.guards.privacy import PrivacyGuard
from polyfed.guards.protections import Schedule, resolve
from polyfed.models import ModelSpec, SplitModel, build
from polyfed.models.slicing import Family, skeleton
from polyfed.runs.folder import RunFolder
from polyfed.runs.secret import derived
from polyfed.training import Samples, TrainSettings


class Plan(ABC):
    """A federation as its server sees it."""

    config: Config
    method: Method
    specs: tuple[ModelSpec, ...]  # by client
    filter: ServerFilter | None
    global_test: Samples | None
    multipliers: Mapping[str, float] | None = None  # of noise, by field, where they were calibrated elsewhere
    secret: str = ""  # of a party that runs on its own: nobody else can tell its noise

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Of every image: channels, height, width."""

    @property
    @abstractmethod
    def classes(self) -> int: ...

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the data came from, for the result."""

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know about the data before the first round."""
        return ()

    @abstractmethod
    def keep(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """Write down who has what; a run that goes on must find what it began with."""

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
        """Where each client stands among all, by name."""
        return {name: k for k, name in enumerate(self.names)}

    def selected(self, number: int) -> tuple[str, ...]:
        """The clients of a round, in their fixed order."""
        names, count = self.names, self.config.per_round
        if count == len(names):
            return names
        stream = rng.numpy_generator(self.seed, "participation", number)
        return tuple(names[k] for k in sorted(stream.choice(len(names), size=count, replace=False).tolist()))

    # what leaves

    @cached_property
    def guard(self) -> PrivacyGuard | None:
        """What stands between clients' steps and the bytes that leave, as the config asks."""
        if not self.config.privacy:
            return None
        turns = Counter(name for number in range(1, self.config.rounds + 1) for name in self.selected(number))
        tries = self.config.failures.repeats + 1 if self.config.failures.on_too_few == "repeat" else 1
        schedule = Schedule(max(turns.values()), tries)
        # a secret for this run: no two runs of a site share noise
        secret = derived(self.secret, "noise", self.config.run_name, self.config.hash())
        return PrivacyGuard(resolve(self.config.privacy, self.method, schedule, self.multipliers), secret)

    @cached_property
    def recorded(self) -> frozenset[str]:
        """The clients whose replies are kept, as they left."""
        for name in map(str, self.config.evaluate.record_uploads):
            if name not in self.positions:
                raise InputError(
                    f"evaluate.record_uploads names client '{name}', which there is not; {nearest(name, self.names)}"
                )
        return frozenset(map(str, self.config.evaluate.record_uploads))

    # models

    def model(self, spec: ModelSpec, *stream: str) -> SplitModel:
        """An architecture with initial weights from a stream."""
        with rng.seeded(self.seed, "init", *stream):
            model = build(spec, shape=self.shape, classes=self.classes)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def common_model(self, spec: str) -> SplitModel:
        """An architecture with the initial weights that every party gives it (R9)."""
        return self.model(ModelSpec.parse(spec), "common", spec)

    @cached_property
    def family(self) -> Family:
        """The one model that a server may keep, and the sub-models that clients hold of it."""
        chosen = self.config.models.server
        whole = (
            ModelSpec.of(chosen) if chosen is not None else max(self.specs, key=lambda spec: self._plan(spec).size)
        )
        return Family(
            whole.text,
            (spec.text for spec in self.specs),
            shape=self.shape,
            classes=self.classes,
            apart=self.config.splitting == "architecture",
        )

    @cached_property
    def _plans(self) -> dict[ModelSpec, Profile]:
        return {}

    def _plan(self, spec: ModelSpec) -> Profile:
        """What an architecture says of every client that has it."""
        if spec not in self._plans:
            model = skeleton(spec, shape=self.shape, classes=self.classes)
            self._plans[spec] = Profile(
                "",
                spec.label,
                layout(model),
                layout(model.head),
                model.feature_dim,
                self.classes,
                0,
                spec.text,
                frozenset(name for name, _ in model.named_buffers()),
                image=self.shape,
            )
        return self._plans[spec]

    @abstractmethod
    def samples(self, k: int) -> int:
        """How many training samples a client has."""

    def profile(self, k: int) -> Profile:
        """What the server knows of a client."""
        return dataclasses.replace(self._plan(self.specs[k]), name=self.names[k], samples=self.samples(k), position=k)

    def profiles(self) -> tuple[Profile, ...]:
        """What the server knows of every client."""
        return tuple(self.profile(k) for k in range(len(self.names)))

    def check_needs(self, profiles: Sequence[Profile]) -> None:
        """Refuse a method that cannot work with these clients, naming those that can."""
        others = [(name, catalogue.load(name).needs) for name in catalogue.methods() if name != self.method.name]
        title, needs = type(self.method).__name__, self.method.needs
        if self.config.splitting != "none":
            splitting.check_method(self.method, self.config.splitting)
            needs = dataclasses.replace(needs, same_architecture=False)
        needs_room.check(title, needs, profiles, others)
        cuts = needs.sub_models or self.config.splitting not in ("none", "architecture")
        if self.config.models.server is not None and not cuts:
            raise InputError(
                "models.server is given, but clients hold no sub-models of it; set splitting: layer, stage or width, "
                "or leave models.server out"
            )
        if needs.sub_models or self.config.splitting != "none":
            splitting.check_family(self.family, self.config.splitting)
        if self.filter is not None and not self.method.one_model:
            raise InputError(
                f"server_filter {self.filter.name} works on the update of one server model, which {title} does not "
                f"keep; use it with {', '.join(splitting.one_model_methods())}, or set server_filter: none"
            )
        self.method.check_training(self.training)

    def server(self, roster: tuple[Profile, ...]) -> Server:
        """The server before its first round."""
        return Server(
            roster,
            self.classes,
            self.config.rounds,
            self.seed,
            self.common_model,
            family=self.family if self.method.one_model else None,
            filter=self.filter,
        )

    def check(self, roster: tuple[Profile, ...]) -> None:
        """Everything that can be known to be wrong before anything is written or run."""
        self.check_needs(roster)
        probes.check(self.config.evaluate, self.method, roster, self.global_test)
        server = self.server(roster)
        if self.filter is not None:
            self.filter.check(server)
        _ = self.guard, self.recorded  # names that are no field's or no client's
        for look in ("cka", "features") if self.config.privacy else ():
            if getattr(self.config.evaluate, look):
                raise InputError(
                    f"evaluate.{look} is true beside privacy, but what it looks at leaves clients without noise; set "
                    "it to false, or leave privacy out"
                )
        if self.method.public_dataset() == self.config.data.dataset:
            raise InputError(
                f"method.public is '{self.config.data.dataset}', which is the clients' own data; name another dataset"
            )
        self.method.init(server)  # an auxiliary model that does not exist or does not fit, for one
