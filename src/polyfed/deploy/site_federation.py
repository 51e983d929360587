"""One site's side of a federation: it makes its one client from its own data and its own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed.config import Config
from polyfed.config.start_files import weights_file
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.core.client_profile import Profile, layout
from polyfed.data.dataset import Dataset, Split
from polyfed.data.site_data import load_own
from polyfed.deploy.agreement import AgreedFederation, agreed_data
from polyfed.deploy.offers import Offer
from polyfed.deploy.site_errors import SiteRefusalError
from polyfed.deploy.site_model import CUSTOM_PREFIX, model_from_file
from polyfed.errors import InputError
from polyfed.federation.start_weights import StartWeights
from polyfed.models import ModelSpec, build, names
from polyfed.training import Samples


class SiteFederation(AgreedFederation):
    """A federation as one of its sites sees it. It knows nothing of the other sites but their names."""

    def __init__(
        self, config: Config, name: str, data: Dataset, spec: ModelSpec, start: StartWeights | None = None
    ) -> None:
        super().__init__(config)
        if name not in self.positions:
            raise SiteRefusalError(f"site {name} is not part of this run; its sites are {', '.join(self.names)}")
        self.name = name
        self.dataset = data
        self.spec = spec
        self.start = start or StartWeights({})
        self.start.check_method(self.method)
        self.train, self.test = _split(data, config, name)

    def offer(self) -> Offer:
        labels, counts = np.unique(self.train.labels.numpy(), return_counts=True)
        samples = {str(label): int(count) for label, count in zip(labels, counts, strict=True)}
        return Offer(self._profile(), self.dataset.source, samples)

    def _profile(self) -> Profile:
        """Describe the site's model. It is built in full, because a custom module may not work on the meta device."""
        model = self.model(self.spec, "client", self.name)
        in_zoo = self.spec.name in names() and not self.spec.name.startswith(CUSTOM_PREFIX)
        return Profile(
            self.name,
            self.spec.label if in_zoo else type(model.backbone).__name__,
            layout(model),
            layout(model.head),
            model.feature_dim,
            self.classes,
            len(self.train),
            self.spec.text if in_zoo else "",
            frozenset(name for name, _ in model.named_buffers()),
            self.positions[self.name],
            self.shape,
            self.dataset.kind == "tokens",
        )

    def make_client(self, name: str) -> Client:
        """Return the site's client as it is before its first step."""
        if name != self.name:
            raise InputError(f"this is site {self.name}, not {name}")
        shared_init = self.config.models.shared_init
        model = self.common_model(self.spec.text) if shared_init else self.model(self.spec, "client", name)
        self.start.load_into(model, name)
        train, test, device = self.place.samples(self.train), self.place.samples(self.test), self.place.device
        return Client(self._profile(), model, train, test, self.training, build=self.common_model, device=device)


def load_site(
    config: Config, name: str, data: Path, model: str, cache: Path | None = None, start: Path | None = None
) -> SiteFederation:
    """Load a site from a data folder and a model: a name of the zoo, or a Python file with a function `build`.

    `cache` is the folder for decoded data. It should be readable by the data's owner alone. `start` is the file or
    the folder with the trained weights that the model starts from.
    """
    shape, class_names = agreed_data(config)
    spec = model_from_file(Path(model)) if model.endswith(".py") else ModelSpec.of(model)
    dataset = load_own(data, shape=shape, class_names=class_names, cache=cache)
    weights = StartWeights({} if start is None else {name: weights_file(start, name)})
    site = SiteFederation(config, name, dataset, spec, weights)
    # reports a model or weights that do not fit before the first message
    weights.check(name, build(spec, shape=shape, classes=len(class_names)))
    return site


def _split(data: Dataset, config: Config, name: str) -> tuple[Samples, Samples]:
    """Return training and test samples: the site's own test split, or a held-out fraction of its training split."""
    if data.test is not None:
        return Samples(data.train.inputs, data.train.labels), Samples(data.test.inputs, data.test.labels)
    order = rng.numpy_generator(config.seed, "site split", name).permutation(len(data.train.labels))
    held_out = min(len(order) - 1, round(config.data.test_fraction * len(order)))
    return _subset(data.train, np.sort(order[held_out:])), _subset(data.train, np.sort(order[:held_out]))


def _subset(split: Split, indices: np.ndarray[Any, Any]) -> Samples:
    at = torch.from_numpy(indices)
    return Samples(split.inputs[at], split.labels[at])
