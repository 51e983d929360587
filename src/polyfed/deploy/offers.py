"""Offers: what a site tells the coordinator about its model and its amount of data before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polyfed.config import Config
from polyfed.core.client_profile import Profile, layout
from polyfed.deploy.agreement import agreed_data
from polyfed.errors import InputError
from polyfed.models import ModelSpec, build
from polyfed.models.meta import meta_device

# An offer comes from outside and may claim anything. These bounds keep it from exhausting the coordinator.
MAX_NUMBER = 10**11  # parameters of a model, samples, and every other count
MAX_FEATURES = 10**6
MAX_LENGTH = 10_000  # characters of a text, tensors of a model
MAX_DIMENSIONS = 4  # of a sample


@dataclass(frozen=True)
class Offer:
    """The shapes of a site's model and its number of samples by class. It holds no data."""

    profile: Profile
    source: str  # kind of data, in words
    train: Mapping[str, int]  # training samples by class

    def to_json(self) -> dict[str, Any]:
        entries = asdict(self)
        entries["profile"]["buffers"] = sorted(self.profile.buffers)
        return entries

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Offer:
        """Parse an offer that came over the network. Raise `InputError` if any part has a wrong type or size."""
        try:
            profile = _parse_profile(entries["profile"])
            counts = {str(label): int(count) for label, count in entries["train"].items()}
            if len(counts) > profile.classes or not all(0 <= count <= MAX_NUMBER for count in counts.values()):
                raise ValueError("train")
            if max(len(text) for text in (profile.architecture, profile.spec, str(entries["source"]))) > MAX_LENGTH:
                raise ValueError("a text that is too long")
            return cls(profile, str(entries["source"]), counts)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"the offer of a site is not readable: {type(error).__name__}: {error}") from None


def _parse_profile(entries: Mapping[str, Any]) -> Profile:
    fields = dict(entries)
    for part in ("model", "head"):
        fields[part] = tuple((str(n), tuple(int(e) for e in shape), str(t)) for n, shape, t in fields[part])
    fields["input_shape"] = tuple(int(extent) for extent in fields["input_shape"])
    if not 1 <= len(fields["input_shape"]) <= MAX_DIMENSIONS:
        raise ValueError("input_shape")
    fields["buffers"] = frozenset(str(name) for name in fields["buffers"])
    for text in ("name", "architecture", "spec"):
        if not isinstance(fields[text], str):
            raise TypeError(text)
    for number in ("features", "classes", "samples", "position"):
        if type(fields[number]) is not int or not 0 <= fields[number] <= MAX_NUMBER:
            raise TypeError(number)
    if not isinstance(fields["tokens"], bool):
        raise TypeError("tokens")
    profile = Profile(**fields)
    if not 0 < profile.size <= MAX_NUMBER or len(profile.model) > MAX_LENGTH or profile.features > MAX_FEATURES:
        raise ValueError("a model of absurd size")
    if any(extent < 0 for _, extents, _ in (*profile.model, *profile.head) for extent in extents):
        raise ValueError("a dimension below 0")
    return profile


def check_offer(config: Config, offer: Offer) -> None:
    """Raise `InputError` if an offer does not match the config, or if its model is not what its spec builds."""
    shape, class_names = agreed_data(config)
    profile = offer.profile
    if profile.classes != len(class_names):
        raise InputError(f"its model has {profile.classes} classes; the federation has {len(class_names)}")
    if profile.spec:
        spec = ModelSpec.of(profile.spec)
        with meta_device():  # allocates no memory, whatever size the offer claims
            model = build(spec, shape=shape, classes=len(class_names))
        claimed = (profile.model, profile.head, profile.features)
        if claimed != (layout(model), layout(model.head), model.feature_dim):
            raise InputError(f"the model that it describes is not '{spec.label}'")
