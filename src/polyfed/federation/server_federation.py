"""A federation as its server knows it: clients' models and sample counts, the method and the filter, but no data.

`SimulatedFederation` adds the data. The coordinator of real sites has no more than this.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property, partial

from polyfed.core import needs as requirements
from polyfed.core.client_profile import Profile, layout
from polyfed.core.filter import ServerFilter
from polyfed.core.place import server_place
from polyfed.core.rounds import initialise
from polyfed.core.server import Server
from polyfed.errors import InputError, nearest
from polyfed.federation import aggregation_check, alternatives, analysis_probes, splitting
from polyfed.federation.base import FederationBase
from polyfed.federation.free_memory import within_free_memory
from polyfed.federation.secure_sums import check_secure_sums
from polyfed.models import ModelSpec, SplitModel
from polyfed.models.slicing import Family, skeleton
from polyfed.runs.folder import RunFolder


class ServerFederation(FederationBase):
    """The server's view of a federation. It builds client profiles and the server, and checks the config."""

    specs: tuple[ModelSpec, ...]  # one architecture per client
    filter: ServerFilter | None
    suggests: bool = True  # whether refusals name settings that work
    assigns_models: bool = False  # whether the config, not the clients, chooses the architectures

    @property
    @abstractmethod
    def source(self) -> str:
        """A description of where the data came from, for the result."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the data, for the user, before the first round."""
        return ()

    @abstractmethod
    def save_metadata(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """Write the clients' metadata to the run folder. On resume, check that the data has not changed."""

    @abstractmethod
    def num_samples(self, k: int) -> int:
        """Return the number of training samples of a client."""

    @cached_property
    def recorded_clients(self) -> frozenset[str]:
        """The clients whose uploads are saved."""
        recorded = [str(name) for name in self.config.evaluate.record_uploads]
        for name in recorded:
            if name not in self.positions:
                hint = nearest(name, self.names)
                raise InputError(f"evaluate.record_uploads names client '{name}', which does not exist; {hint}")
        return frozenset(recorded)

    # models

    @cached_property
    def family(self) -> Family:
        """The server model of a one-model method, and the clients' sub-models of it."""
        chosen = self.config.models.server
        if chosen is not None:
            server_spec = ModelSpec.of(chosen)
        else:
            server_spec = max(self.specs, key=lambda spec: self._architecture_profile(spec).size)
        return Family(
            server_spec.text,
            (spec.text for spec in self.specs),
            shape=self.shape,
            classes=self.classes,
            apart=self.config.splitting == "architecture",
        )

    @cached_property
    def _architecture_profiles(self) -> dict[ModelSpec, Profile]:
        return {}

    def _architecture_profile(self, spec: ModelSpec) -> Profile:
        """Return the part of a profile that all clients with this architecture share."""
        if spec not in self._architecture_profiles:
            model = skeleton(spec, shape=self.shape, classes=self.classes)
            self._architecture_profiles[spec] = Profile(
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
                tokens=spec.vocabulary is not None,
            )
        return self._architecture_profiles[spec]

    def profile(self, k: int) -> Profile:
        """Return what the server knows about a client."""
        shared = self._architecture_profile(self.specs[k])
        return dataclasses.replace(shared, name=self.names[k], samples=self.num_samples(k), position=k)

    def largest_model(self) -> int:
        """Return the size of the largest client model in bytes."""
        return 4 * max(self._architecture_profile(spec).size for spec in set(self.specs))

    def profiles(self) -> tuple[Profile, ...]:
        """Return the profiles of all clients, in client order."""
        return tuple(self.profile(k) for k in range(len(self.names)))

    def client_costs(self) -> dict[str, float]:
        """Return an estimate of the relative cost of each client's training: its samples times its model's size."""
        sizes = {spec: self._architecture_profile(spec).size for spec in set(self.specs)}
        return {name: float(self.num_samples(k) * sizes[self.specs[k]]) for k, name in enumerate(self.names)}

    def server_model(self, spec: str) -> SplitModel:
        """Build an architecture on the server's device, with its common initial weights."""
        model = self.common_model(spec)
        return model if self.place.on_cpu else model.to(server_place(self.place).device)

    def server(self, roster: tuple[Profile, ...]) -> Server:
        """Build the server, before the method initialises its state."""
        return Server(
            roster,
            self.classes,
            self.config.rounds,
            self.seed,
            self.server_model,
            place=server_place(self.place),
            family=self.family if self.method.one_model else None,
            filter=self.filter,
            aggregation=aggregation_check.aggregation_rule(self.config),
        )

    # checks before the first round

    def check(self, roster: tuple[Profile, ...]) -> Server:
        """Raise `InputError` for whatever can be found wrong before a run starts. Return the initialised server."""
        self.check_needs(roster)
        analysis_probes.check_probes(self.config.evaluate, self.method, roster, self.global_test)
        server = self.server(roster)
        if self.filter is not None:
            self.filter.check(server)
        _ = self.guard, self.recorded_clients  # raise an error for unknown fields and clients
        for probe in ("cka", "features") if self.config.privacy else ():
            if getattr(self.config.evaluate, probe):
                raise InputError(
                    f"evaluate.{probe} is true and privacy is set, but the outputs that it collects leave clients "
                    "without noise; set it to false, or remove privacy"
                )
        if self.config.privacy and "confusion" in self.config.evaluate.metrics:
            raise InputError(
                "evaluate.metrics has confusion and privacy is set, but counts of test samples by class leave "
                "clients without noise; remove one of them"
            )
        if self.method.public_dataset() == self.config.data.dataset:
            raise InputError(
                f"method.public is '{self.config.data.dataset}', which is the clients' own data; name another dataset"
            )
        limit = (
            within_free_memory(f"the server's state of {self.method.name}") if self.place.on_cpu else nullcontext()
        )
        with limit:
            return initialise(self.method, server)  # raises an error, for one, if an auxiliary model does not fit

    def check_needs(self, profiles: tuple[Profile, ...]) -> None:
        """Raise `InputError` if the method, splitting or filter does not work with these clients."""
        title, needs = type(self.method).__name__, self.method.requirements()
        methods = partial(alternatives.working_methods, self, profiles)
        splittings = partial(alternatives.working_splittings, self, profiles)
        if self.config.splitting != "none":
            splitting.check_method(self.method, self.config.splitting, methods, splittings)
            needs = dataclasses.replace(needs, same_architecture=False)
        requirements.check(title, needs, profiles, methods, self.method.relaxed_by)
        uses_sub_models = needs.sub_models or self.config.splitting not in ("none", "architecture")
        if self.config.models.server is not None and not uses_sub_models:
            working = splittings()
            advice = f"set splitting: {splitting.listed(working)}, or " if working else ""
            raise InputError(
                f"models.server is given, but clients hold no sub-models of it; {advice}remove models.server"
            )
        if needs.sub_models or self.config.splitting != "none":
            groups = partial(alternatives.working_groups, self)
            splitting.check_family(self.family, self.config.splitting, splittings, groups)
        if self.filter is not None and not self.method.one_model:
            working = methods()
            advice = f"use it with {', '.join(working)}, or " if working else ""
            raise InputError(
                f"server_filter {self.filter.name} filters the update of one server model, which {title} does not "
                f"have; {advice}set server_filter: none"
            )
        aggregation_check.check_aggregation(self.config, self.method, methods)
        check_secure_sums(self.config, self.method)
        self.method.check_training(self.training)
