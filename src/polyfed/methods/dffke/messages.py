"""Nested values in messages and states, and the fields that hold them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from polyfed.core import Value
from polyfed.core.client_profile import Profile
from polyfed.core.schema import Field, TensorField, TreeField, WeightsField

Messages = dict[str, dict[str, Value]]  # to each client its own fields


def subtree(value: Value) -> dict[str, Value]:
    """Return a nested mapping as a new dict, which is empty if the value is missing or no mapping."""
    return dict(value) if isinstance(value, Mapping) else {}


def round_key(number: int) -> str:
    """Return the key of a round in replay buffers."""
    return f"{number:06d}"


def samples(method: object, profile: Profile) -> int:
    """Return a client's number of training samples, as a dimension of a message field."""
    return profile.samples


def tree_fields(*names: str) -> dict[str, TreeField]:
    """Return the schema of optional fields that hold nested values."""
    return {name: TreeField(optional=True) for name in names}


def channels(method: object, profile: Profile) -> int:
    """Return the number of channels of a client's images, as a dimension of a message field."""
    return profile.input_shape[0]


EMBED_REPLY: dict[str, Field] = {
    "model": WeightsField("model"),
    "embeddings": TensorField((samples, "features"), by_sample=True),
    "labels": TensorField((samples,), torch.int32, least=0, most="label", optional=True),
    "outputs": TensorField((samples, "classes"), optional=True, by_sample=True),
    "pixels": TensorField((2, channels), optional=True),
}
