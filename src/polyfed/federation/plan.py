"""What is known of a federation without its data: who takes part, with which models, by which method.

`SimulatedFederation` has the data as well; a coordinator of sites that keep theirs has only this.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property

from polyfed import catalogue
from polyfed.core import needs as needs_room
from polyfed.core.filter import ServerFilter
from polyfed.core.profile import Profile, layout
from polyfed.core.rounds import initialise
from polyfed.core.server import Server
from polyfed.errors import InputError, nearest
from polyfed.federation import probes, splitting
from polyfed.federation.base import FederationBase
from polyfed.models import ModelSpec
from polyfed.models.slicing import Family, skeleton
from polyfed.runs.folder import RunFolder


class Plan(FederationBase):
    """A federation as its server sees it."""

    specs: tuple[ModelSpec, ...]  # by client
    filter: ServerFilter | None

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the data came from, for the result."""

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know about the data before the first round."""
        return ()

    @abstractmethod
    def save_metadata(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """Write down who has what; a run that goes on must find what it began with."""

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
                input_shape=self.shape,
            )
        return self._plans[spec]

    @abstractmethod
    def num_samples(self, k: int) -> int:
        """How many training samples a client has."""

    def profile(self, k: int) -> Profile:
        """What the server knows of a client."""
        return dataclasses.replace(
            self._plan(self.specs[k]), name=self.names[k], samples=self.num_samples(k), position=k
        )

    def profiles(self) -> tuple[Profile, ...]:
        """What the server knows of every client."""
        return tuple(self.profile(k) for k in range(len(self.names)))

    def check_needs(self, profiles: Sequence[Profile]) -> None:
        """Refuse a method that cannot work with these clients, naming those that can."""
        title, needs = type(self.method).__name__, self.method.needs
        if self.config.splitting != "none":
            splitting.check_method(self.method, self.config.splitting)
            needs = dataclasses.replace(needs, same_architecture=False)

        def other_methods() -> Iterator[tuple[str, needs_room.Needs]]:
            for name in catalogue.methods():  # imports every method, so only for an error message
                if name != self.method.name:
                    yield name, catalogue.load(name).needs

        needs_room.check(title, needs, profiles, other_methods())
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

    def check(self, roster: tuple[Profile, ...]) -> Server:
        """Raise InputError for everything that can be checked before a run starts. Return the initialised server."""
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
        return initialise(self.method, server)  # refuses, for example, an auxiliary model that does not fit
