"""Parties that keep their data: what a site tells of itself, the federation as its coordinator sees it, and the site.

The config says what all agreed on: `data: {dataset: sites, shape: [1, 28, 28], class_names: [...]}`. Data, models and
memory stay at the sites; the coordinator knows their offers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from polyfed import catalogue
from polyfed.config import Config
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.core.profile import Profile, layout
from polyfed.data.dataset import Dataset, Split
from polyfed.data.site_data import load_own
from polyfed.errors import InputError, RunError
from polyfed.federation.client_metadata import entry
from polyfed.federation.plan import Plan
from polyfed.federation.simulation import import_file
from polyfed.models import ModelSpec, SplitModel, build, from_module, names, register
from polyfed.models.slicing import Family
from polyfed.runs.folder import RunFolder
from polyfed.training import Samples

SITES = "sites"  # the dataset's name in a config where every site brings its own


# what no offer goes beyond: numbers in a model or samples, features, and letters of a text or tensors of a model
MOST, WIDEST, LONGEST = 10**11, 10**6, 10_000


@dataclass(frozen=True)
class Offer:
    """What a site tells the coordinator before the first round: its model's shapes and its amounts, no data."""

    profile: Profile
    source: str  # what kind of data it is, in words
    train: Mapping[str, int]  # samples by class

    def to_json(self) -> dict[str, Any]:
        entries = asdict(self)
        entries["profile"]["buffers"] = sorted(self.profile.buffers)
        return entries

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Offer:
        """From what came over the network: checked by type, so that a wrong one is one sentence."""
        try:
            facts = dict(entries["profile"])
            for part in ("model", "head"):
                facts[part] = tuple((str(n), tuple(int(e) for e in shape), str(t)) for n, shape, t in facts[part])
            channels, height, width = (int(extent) for extent in facts["image"])
            facts["image"] = (channels, height, width)
            facts["buffers"] = frozenset(str(name) for name in facts["buffers"])
            for word in ("name", "architecture", "spec"):
                if not isinstance(facts[word], str):
                    raise TypeError(word)
            for number in ("features", "classes", "samples", "position"):
                if type(facts[number]) is not int or not 0 <= facts[number] <= MOST:
                    raise TypeError(number)
            amounts = {str(label): int(count) for label, count in entries["train"].items()}
            if len(amounts) > facts["classes"] or not all(0 <= count <= MOST for count in amounts.values()):
                raise ValueError("train")
            profile = Profile(**facts)
            if not 0 < profile.size <= MOST or len(profile.model) > LONGEST or profile.features > WIDEST:
                raise ValueError("a model of absurd size")
            if any(extent < 0 for _, extents, _ in (*profile.model, *profile.head) for extent in extents):
                raise ValueError("an extent below 0")
            if max(len(text) for text in (profile.architecture, profile.spec, str(entries["source"]))) > LONGEST:
                raise ValueError("a text that is too long")
            return cls(profile, str(entries["source"]), amounts)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                f"what a site tells of itself is not readable: {type(error).__name__}: {error}"
            ) from None


class _Agreed(Plan):
    """What coordinator and site both take from the config alone."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.method = catalogue.make(config.method)
        self.filter = catalogue.make_filter(config.server_filter)
        self.global_test = None
        self._shape, self.class_names = agreed(config)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._shape

    @property
    def classes(self) -> int:
        return len(self.class_names)


def agreed(config: Config) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """The shape of all images and the names of all classes, which must stand in a config for sites."""
    shape, class_names = config.data.shape, config.data.class_names
    if config.data.dataset != SITES or shape is None or class_names is None:
        raise InputError(
            "sites with data of their own need data: {dataset: sites, shape: [channels, height, width], class_names: "
            f"[...]}}; found dataset {config.data.dataset}, shape {shape}, class_names {class_names}"
        )
    if min(shape) < 1 or shape[1] != shape[2]:
        raise InputError(f"data.shape is {shape}, but channels, height and width of square images are needed")
    if len(set(class_names)) != len(class_names):
        raise InputError("data.class_names has a name twice")
    return (shape[0], shape[1], shape[2]), tuple(class_names)


def check_offer(config: Config, offer: Offer) -> None:
    """Refuse an offer that does not go with the config, or whose model is not the one that its spec makes."""
    shape, class_names = agreed(config)
    profile = offer.profile
    if profile.classes != len(class_names):
        raise InputError(f"it has a model for {profile.classes} classes; all agreed on {len(class_names)}")
    if profile.spec:
        spec = ModelSpec.of(profile.spec)
        with torch.device("meta"):  # nothing is allocated, however large it says it is
            made = build(spec, shape=shape, classes=len(class_names))
        if layout(made) != profile.model or layout(made.head) != profile.head or made.feature_dim != profile.features:
            raise InputError(f"what it tells of its model is not what '{spec.label}' is")


class RemoteFederation(_Agreed):
    """The federation as its coordinator sees it: offers, and no data."""

    def __init__(self, config: Config, offers: Mapping[str, Offer]) -> None:
        super().__init__(config)
        missing = [name for name in self.names if name not in offers]
        if missing:
            raise RunError(f"site {missing[0]} has not told what it brings")
        self.offers = tuple(offers[name] for name in self.names)
        for name, offer in zip(self.names, self.offers, strict=True):
            if offer.profile.classes != self.classes:
                raise InputError(
                    f"site {name} has a model for {offer.profile.classes} classes; all agreed on {self.classes}"
                )
        self.specs = tuple(ModelSpec.of(offer.profile.spec or UNKNOWN) for offer in self.offers)

    @cached_property
    def family(self) -> Family:
        self._refuse_unknown(f"{type(self.method).__name__} keeps one model at the server")
        return super().family

    def common_model(self, spec: str) -> SplitModel:
        if spec in ("", UNKNOWN):
            self._refuse_unknown("the method builds clients' models at the server", "; name one for it in the method")
        return super().common_model(spec)

    def _refuse_unknown(self, why: str, way_out: str = "") -> None:
        own = next((n for n, offer in zip(self.names, self.offers, strict=True) if not offer.profile.spec), None)
        if own is not None:
            raise InputError(f"site {own} brings a model that only it can build, but {why}{way_out}")

    @property
    def source(self) -> str:
        return "; ".join(f"{name}: {offer.source}" for name, offer in zip(self.names, self.offers, strict=True))

    def samples(self, k: int) -> int:
        return self.offers[k].profile.samples

    def profile(self, k: int) -> Profile:
        """As the site told it, under the name and at the place that the coordinator knows it by."""
        return dataclasses.replace(self.offers[k].profile, name=self.names[k], position=k, image=self.shape)

    def keep(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        if not folder.clients_file.exists():
            folder.write_clients(
                {
                    "class_names": list(self.class_names),
                    "clients": [
                        entry(profile, offer.train, {}) for profile, offer in zip(roster, self.offers, strict=True)
                    ],
                }
            )


UNKNOWN = "a-model-of-its-own"  # an architecture that only its site can build


class SiteFederation(_Agreed):
    """One site: makes its one client from its own data and its own model."""

    def __init__(self, config: Config, name: str, data: Dataset, spec: ModelSpec) -> None:
        super().__init__(config)
        if name not in self.positions:
            raise InputError(f"site {name} is not one of this run's: {', '.join(self.names)}")
        self.name = name
        self.dataset = data
        self.specs = (spec,) * len(self.names)  # of the others it knows nothing
        self.train, self.test = _split(data, config, name)

    @property
    def source(self) -> str:
        return self.dataset.source

    def samples(self, k: int) -> int:
        return len(self.train)

    def keep(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """A site keeps no run folder."""

    def offer(self) -> Offer:
        labels, counts = np.unique(self.train.labels.numpy(), return_counts=True)
        amounts = {str(label): int(count) for label, count in zip(labels, counts, strict=True)}
        return Offer(self._profile(), self.source, amounts)

    def _profile(self) -> Profile:
        """What its model is like, whoever wrote it: a module of one's own may not be buildable without memory."""
        spec = self.specs[0]
        model = self.model(spec, "client", self.name)
        zoo = spec.name in names() and not spec.name.startswith(OWN)
        return Profile(
            self.name,
            spec.label if zoo else type(model.backbone).__name__,
            layout(model),
            layout(model.head),
            model.feature_dim,
            self.classes,
            len(self.train),
            spec.text if zoo else "",
            frozenset(name for name, _ in model.named_buffers()),
            self.positions[self.name],
            self.shape,
        )

    def make(self, name: str) -> Client:
        """The site's client as it is before its first step."""
        if name != self.name:
            raise InputError(f"this is site {self.name}, not {name}")
        spec, shared = self.specs[0], self.config.models.shared_init
        model = self.common_model(spec.text) if shared else self.model(spec, "client", name)
        return Client(self._profile(), model, self.train, self.test, self.training, build=self.common_model)


def _split(data: Dataset, config: Config, name: str) -> tuple[Samples, Samples]:
    """What the site trains on and what it is measured on: its own test part, or a share of what it has."""
    if data.test is not None:
        return Samples(data.train.images, data.train.labels), Samples(data.test.images, data.test.labels)
    order = rng.numpy_generator(config.seed, "site split", name).permutation(len(data.train.labels))
    held_out = min(len(order) - 1, round(config.data.test_fraction * len(order)))
    return _part(data.train, np.sort(order[held_out:])), _part(data.train, np.sort(order[:held_out]))


def _part(split: Split, chosen: np.ndarray[Any, Any]) -> Samples:
    at = torch.from_numpy(chosen)
    return Samples(split.images[at], split.labels[at])


# a site's model


OWN = "own-"  # registered names of models from files


def site(config: Config, name: str, data: Path, model: str, cache: Path | None = None) -> SiteFederation:
    """A site from a folder with data, and a model of the zoo or a Python file with a function `build`.

    `cache` is where decoded data are kept: a folder that is the owner's alone, for data that are.
    """
    shape, class_names = agreed(config)
    spec = own_model(Path(model)) if model.endswith(".py") else ModelSpec.of(model)
    made = SiteFederation(config, name, load_own(data, shape=shape, class_names=class_names, cache=cache), spec)
    build(spec, shape=shape, classes=len(class_names))  # what does not fit is said before anybody is called
    return made


def own_model(path: Path) -> ModelSpec:
    """The model of a file: `build()` gives any module whose last layer is a Linear; it may take shape and classes."""
    module = import_file(path.expanduser().resolve())
    factory = getattr(module, "build", None)
    if not callable(factory):
        raise InputError(f"{path} has no function build() that gives a model")
    name = f"{OWN}{path.stem}"
    register(name, _cut(factory, path))
    return ModelSpec(name)


def _cut(factory: Callable[..., nn.Module], path: Path) -> Callable[..., SplitModel]:
    taken = inspect.signature(factory).parameters

    def made(shape: tuple[int, int, int], classes: int) -> SplitModel:
        offered = {"shape": shape, "classes": classes}
        module = factory(**{key: value for key, value in offered.items() if key in taken})
        if isinstance(module, SplitModel):
            return module
        linears = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        if not linears:
            raise InputError(f"the model of {path} has no Linear layer that could be its head")
        return from_module(module, linears[-1], shape=shape, classes=classes)

    return made
