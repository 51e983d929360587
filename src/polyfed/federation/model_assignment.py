"""Assign an architecture to every client, as the `models` section of a config says."""

from __future__ import annotations

from collections.abc import Sequence

from polyfed.config import Config
from polyfed.core import rng
from polyfed.data.dataset import Dataset
from polyfed.errors import InputError
from polyfed.models import ModelSpec, group
from polyfed.models.slicing import skeleton


def assign_models(config: Config) -> tuple[ModelSpec, ...]:
    """Return the architecture of every client, in client order. The result does not depend on the data."""
    settings, n = config.models, config.clients
    if settings.clients is not None:
        if len(settings.clients) != n:
            raise InputError(f"models.clients has {len(settings.clients)} entries for {n} clients")
        return tuple(_with_common_settings(config, [ModelSpec.of(entry) for entry in settings.clients]))
    members = _group_members(config)
    if settings.assign == "round-robin":
        choices = [k % len(members) for k in range(n)]
    elif settings.assign == "blocks":
        choices = [k * len(members) // n for k in range(n)]
    elif settings.assign in ("smallest", "largest"):
        choices = [0] * n  # a placeholder: sizes depend on the image shape, see `assign_by_size`
    else:
        choices = rng.numpy_generator(config.seed, "models").integers(len(members), size=n).tolist()
    return tuple(members[choice] for choice in choices)


def assigned_by_size(config: Config) -> bool:
    """Return whether all clients get the smallest or the largest member of the group."""
    return config.models.assign in ("smallest", "largest") and config.models.clients is None


def assign_by_size(config: Config, data: Dataset) -> ModelSpec:
    """Return the smallest or the largest member of the group, by its number of parameters on this data.

    These are the baselines AllSmall and AllLarge, which ignore the clients' capacities.
    """
    members = _group_members(config)
    sizes = [_parameter_count(spec, data) for spec in members]
    return members[sizes.index((min if config.models.assign == "smallest" else max)(sizes))]


def _group_members(config: Config) -> list[ModelSpec]:
    """Return the architectures of `models.group`."""
    chosen = config.models.group
    members = list(group(chosen)) if isinstance(chosen, str) else [ModelSpec.of(entry) for entry in chosen]
    if not members:
        raise InputError("models.group is empty; name a group or at least one model")
    return _with_common_settings(config, members)


def _with_common_settings(config: Config, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """Apply the keys of `models` that hold for every architecture, if the config sets them."""
    keys = ("feature_dim", "feature_map", "upscale_input")
    given = {key: value for key in keys if (value := getattr(config.models, key)) is not None}
    return [ModelSpec.from_json({**spec.to_json(), **given}) for spec in specs]


def _parameter_count(spec: ModelSpec, data: Dataset) -> int:
    model = skeleton(spec, shape=data.shape, classes=data.classes)
    return sum(parameter.numel() for parameter in model.parameters())
