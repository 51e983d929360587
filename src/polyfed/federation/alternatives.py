"""Find settings that work where a config is refused, for the message of the refusal.

Every setting is tried with the same checks as before a run, so that what a message offers passes `polyfed check`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyfed import catalogue
from polyfed.config import parse
from polyfed.core.client_profile import Profile
from polyfed.core.needs import Needs, violated
from polyfed.errors import PolyfedError
from polyfed.federation.model_assignment import assign_models

if TYPE_CHECKING:
    from polyfed.federation.server_federation import ServerFederation

SUB_MODEL_GROUPS = ("tiny-resnets", "tiny-vits", "tiny-widths", "tiny-exits")
SPLITTINGS = ("none", "layer", "stage", "width")
_DERIVED = ("family", "guard")  # cached properties that depend on the settings that change


def working_methods(federation: ServerFederation, roster: tuple[Profile, ...]) -> list[str]:
    """Return the names of the other methods that work in this federation, with their default options."""
    if not federation.suggests:
        return []
    candidates = [
        info
        for info in catalogue.methods().values()
        if info.name != federation.method.name and _may_work(info, federation, roster)
    ]
    return [info.name for info in candidates if _works(federation, roster, method={"name": info.name})]


def working_splittings(federation: ServerFederation, roster: tuple[Profile, ...]) -> list[str]:
    """Return the other values of `splitting` that work in this federation."""
    if not federation.suggests:
        return []
    others = [splitting for splitting in SPLITTINGS if splitting != federation.config.splitting]
    return [splitting for splitting in others if _works(federation, roster, splitting=splitting)]


def working_groups(federation: ServerFederation) -> list[str]:
    """Return the groups of sub-models that work in this federation. Clients that bring their own models have none."""
    if not federation.suggests or not federation.assigns_models:
        return []
    models = federation.config.models.model_dump(mode="json")
    return [name for name in SUB_MODEL_GROUPS if _works(federation, None, models={**models, "group": name})]


def _may_work(info: catalogue.MethodInfo, federation: ServerFederation, roster: Sequence[Profile]) -> bool:
    """Return whether the declared requirements are met. This imports no method and builds no model."""
    required = dict.fromkeys(info.requires, True)
    if federation.config.splitting != "none":
        required.pop("same_architecture", None)
    return violated(Needs(**{"same_classes": False, **required}), roster) is None


def _works(federation: ServerFederation, roster: tuple[Profile, ...] | None, **settings: Any) -> bool:
    """Return whether all checks before a run pass with other settings. `roster` is None if models change."""
    try:
        variant = copy.copy(federation)
        variant.suggests = False  # a refusal of the variant needs no suggestions
        for name in _DERIVED:
            variant.__dict__.pop(name, None)
        variant.config = parse({**federation.config.to_dict(), **settings})
        variant.method = catalogue.make(variant.config.method)
        variant.filter = catalogue.make_filter(variant.config.server_filter)
        if roster is None:
            variant.specs = assign_models(variant.config)
            roster = variant.profiles()
        variant.check(roster)
    except PolyfedError:
        return False
    return True
