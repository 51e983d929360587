"""Check before a run that the config's `splitting` fits its method and its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyfed.core.method import Method
from polyfed.errors import InputError
from polyfed.models.slicing import Family, block_names


def check_method(
    method: Method, splitting: str, methods: Callable[[], Sequence[str]], splittings: Callable[[], Sequence[str]]
) -> None:
    """Raise `InputError` if the method does not support `splitting`.

    `methods` and `splittings` return what would work instead. They are only called for the message.
    """
    if not (method.one_model and method.needs.same_architecture):
        reason = "slices its models itself" if method.needs.sub_models else "does not have one server model"
        remedies = [
            *(["set splitting: none"] if "none" in splittings() else []),
            *([f"use one of {', '.join(working)}"] if (working := methods()) else []),
        ]
        advice = f"; {', or '.join(remedies)}" if remedies else ""
        raise InputError(f"splitting is '{splitting}', but {type(method).__name__} {reason}{advice}")


def check_family(
    family: Family, splitting: str, splittings: Callable[[], Sequence[str]], groups: Callable[[], Sequence[str]]
) -> None:
    """Raise `InputError` if a client model is not a sub-model of the server's of the kind that `splitting` names.

    `splittings` and `groups` return what would work instead. They are only called for the message.
    """
    if family.apart:
        return
    for spec in family.members:
        try:
            cut = family.cut(spec)
        except InputError as error:
            working = groups()
            advice = f" Use a group of sub-models, such as {listed(working)}." if working else ""
            raise InputError(f"models: {spec} is no sub-model of {family.whole}: {error}{advice}") from None
        if splitting == "none":
            continue
        narrower = next((n for n, index in cut.items() if any(part is not None for part in index)), None)
        missing = next((name for name in family.skeleton().state_dict() if name not in cut), None)
        if splitting == "width" and missing is not None:
            raise InputError(
                f"splitting is 'width', but {spec} lacks '{missing}' of {family.whole}: it is a sub-model by depth"
                f"{_splitting_advice(splittings())}"
            )
        if splitting != "width" and narrower is not None:
            raise InputError(
                f"splitting is '{splitting}', but {spec} has fewer channels than {family.whole} in '{narrower}'"
                f"{_splitting_advice(splittings())}"
            )
    if splitting in ("layer", "stage"):
        stages = len(block_names(family.skeleton()))
        if (splitting == "layer") != (stages == 1):
            raise InputError(
                f"splitting is '{splitting}', but {family.whole} has {stages} stage{'s' if stages > 1 else ''}"
                f"{_splitting_advice(splittings())}"
            )


def _splitting_advice(splittings: Sequence[str]) -> str:
    return f"; use splitting: {listed(splittings)}" if splittings else ""


def listed(names: Sequence[str]) -> str:
    """Return names as text, such as 'a, b or c'."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
