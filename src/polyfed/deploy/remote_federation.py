"""The federation as its coordinator sees it: offers of sites that keep their data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property

from polyfed import catalogue
from polyfed.config import Config
from polyfed.core.client_profile import Profile
from polyfed.deploy.agreement import AgreedFederation
from polyfed.deploy.offers import Offer
from polyfed.errors import InputError, RunError
from polyfed.federation.client_metadata import client_entry
from polyfed.federation.server_federation import ServerFederation
from polyfed.models import ModelSpec, SplitModel
from polyfed.models.slicing import Family
from polyfed.runs.folder import RunFolder

CUSTOM = "a-model-of-its-own"  # spec of an architecture that only its site can build


class RemoteFederation(AgreedFederation, ServerFederation):
    """A federation built from the offers of all sites."""

    def __init__(self, config: Config, offers: Mapping[str, Offer]) -> None:
        super().__init__(config)
        self.filter = catalogue.make_filter(config.server_filter)
        missing = [name for name in self.names if name not in offers]
        if missing:
            raise RunError(f"site {missing[0]} has not sent its offer")
        self.offers = tuple(offers[name] for name in self.names)
        for name, offer in zip(self.names, self.offers, strict=True):
            if offer.profile.classes != self.classes:
                raise InputError(
                    f"site {name} has a model for {offer.profile.classes} classes; the federation has {self.classes}"
                )
        self.specs = tuple(ModelSpec.of(offer.profile.spec or CUSTOM) for offer in self.offers)

    @cached_property
    def family(self) -> Family:
        self._check_buildable(f"{type(self.method).__name__} keeps one model at the server")
        return super().family

    def common_model(self, spec: str) -> SplitModel:
        if spec in ("", CUSTOM):
            self._check_buildable("the method builds clients' models at the server", "; name one in the method")
        return super().common_model(spec)

    def _check_buildable(self, reason: str, advice: str = "") -> None:
        """Raise `InputError` if a site has a custom model, which the server cannot build."""
        custom = next((n for n, offer in zip(self.names, self.offers, strict=True) if not offer.profile.spec), None)
        if custom is not None:
            raise InputError(f"site {custom} has a model that only it can build, but {reason}{advice}")

    @property
    def source(self) -> str:
        return "; ".join(f"{name}: {offer.source}" for name, offer in zip(self.names, self.offers, strict=True))

    def num_samples(self, k: int) -> int:
        return self.offers[k].profile.samples

    def profile(self, k: int) -> Profile:
        """Return the profile of a site's offer, with the name and position that the coordinator gives it."""
        return dataclasses.replace(self.offers[k].profile, name=self.names[k], position=k, input_shape=self.shape)

    def save_metadata(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """Write clients.json, unless a previous start of this run has written it."""
        if not folder.clients_file.exists():
            folder.write_clients(
                {
                    "class_names": list(self.class_names),
                    "clients": [
                        client_entry(profile, offer.train, {})
                        for profile, offer in zip(roster, self.offers, strict=True)
                    ],
                }
            )
