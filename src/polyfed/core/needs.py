"""Requirements of a method on its clients. They are checked before the first round."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from polyfed.core.client_profile import Layout, Profile
from polyfed.errors import InputError


@dataclass(frozen=True)
class Needs:
    """Requirements of a method. Each one that is True must hold across all clients."""

    same_architecture: bool = False
    same_head: bool = False
    same_features: bool = False
    same_classes: bool = True
    sub_models: bool = False
    images: bool = False  # every sample is a picture (channels, height, width)
    numbers: bool = False  # samples are numbers (pictures, series or tables), not tokens of a text

    def names(self) -> list[str]:
        """Return descriptions of the requirements that are True."""
        return [_WORDS[f.name] for f in fields(self) if getattr(self, f.name)]


@dataclass(frozen=True)
class _Predicate:
    words: str
    value: Callable[[Profile], Hashable]
    show: Callable[[Profile], str]
    remedy: str


def _shapes(layout: Layout) -> str:
    return str([shape for _, shape, _ in layout])


_PREDICATES = {
    "same_architecture": _Predicate(
        "one architecture",
        lambda p: p.model,
        lambda p: f"{p.architecture} ({len(p.model)} tensors)",
        "give all clients one model (models.group: [NAME])",
    ),
    "same_head": _Predicate(
        "heads of equal shape",
        lambda p: p.head,
        lambda p: f"{p.architecture} with head {_shapes(p.head)}",
        "give all clients the same head (models.feature_dim makes the widths equal)",
    ),
    "same_features": _Predicate(
        "one feature width",
        lambda p: p.features,
        lambda p: f"{p.architecture} with {p.features} features",
        "set models.feature_dim",
    ),
    "same_classes": _Predicate(
        "one label space",
        lambda p: p.classes,
        lambda p: f"{p.architecture} with {p.classes} classes",
        "use one label space",
    ),
    "images": _Predicate(
        "samples that are pictures",
        lambda p: len(p.input_shape) == 3,
        lambda p: f"samples of shape {'x'.join(map(str, p.input_shape))}",
        "use a method that does not decode pictures",
    ),
    "numbers": _Predicate(
        "samples that are numbers (pictures, series or tables)",
        lambda p: not p.tokens,
        lambda p: "samples that are tokens of a text",
        "use a method that does not decode samples",
    ),
}
_OF_EACH_CLIENT = ("images", "numbers")  # requirements on each client, not on the equality of clients


# sub-models are compared with the server model, not with each other: see `models.slicing`
_WORDS = {name: predicate.words for name, predicate in _PREDICATES.items()} | {
    "sub_models": "models that are slices of the largest"
}


def violated(needs: Needs, profiles: Sequence[Profile]) -> tuple[str, dict[Hashable, list[Profile]]] | None:
    """Return the first requirement that is not met, with clients grouped by value. Return None if all are met."""
    for requirement in fields(needs):
        if not getattr(needs, requirement.name) or requirement.name not in _PREDICATES:
            continue
        groups: dict[Hashable, list[Profile]] = {}
        for profile in profiles:
            groups.setdefault(_PREDICATES[requirement.name].value(profile), []).append(profile)
        of_each = requirement.name in _OF_EACH_CLIENT
        if of_each:
            groups.pop(True, None)
        if len(groups) > (0 if of_each else 1):
            return requirement.name, groups
    return None


def check(
    title: str,
    needs: Needs,
    profiles: Sequence[Profile],
    alternatives: Callable[[], Sequence[str]],
    relaxed_by: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise InputError if a requirement is not met. The message names the clients and the methods that would work.

    `alternatives` returns these methods. It is only called for the message. `relaxed_by` has the options of the
    method that remove a requirement.
    """
    violation = violated(needs, profiles)
    if violation is None:
        return
    name, groups = violation
    predicate = _PREDICATES[name]
    shown = "; ".join(
        f"{_clients([p.name for p in group])} {'has' if len(group) == 1 else 'have'} {predicate.show(group[0])}"
        for group in groups.values()
    )
    methods = alternatives()
    hint = f" Methods that would work: {', '.join(methods)}." if methods else ""
    option = f", or {relaxed_by[name]}" if name in relaxed_by else ""
    raise InputError(f"{title} needs {predicate.words}, but {shown}; {predicate.remedy}{option}.{hint}")


def _clients(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"client {shown}" if len(names) == 1 else f"clients {shown}"
