"""Check before a run that the config's `splitting` fits its method and its models."""

from __future__ import annotations

from polyfed import catalogue
from polyfed.core.method import Method
from polyfed.errors import InputError
from polyfed.models.slicing import Family, block_names


def one_model_methods() -> list[str]:
    """Return the names of the methods with one server model."""
    return [name for name in catalogue.methods() if catalogue.load(name).one_model]


def splittable_methods() -> list[str]:
    """Return the names of the one-model methods that work with any `splitting`."""
    return [name for name in one_model_methods() if catalogue.load(name).needs.same_architecture]


def check_method(method: Method, splitting: str) -> None:
    """Raise `InputError` if the method does not support `splitting`."""
    if not (method.one_model and method.needs.same_architecture):
        reason = "slices its models itself" if method.needs.sub_models else "does not have one server model"
        raise InputError(
            f"splitting is '{splitting}', but {type(method).__name__} {reason}; set splitting: none, or use one of "
            f"{', '.join(splittable_methods())}"
        )


def check_family(family: Family, splitting: str) -> None:
    """Raise `InputError` if a client model is not a sub-model of the server's of the kind that `splitting` names."""
    if family.apart:
        return
    for spec in family.members:
        try:
            cut = family.cut(spec)
        except InputError as error:
            raise InputError(
                f"models: {spec} is no sub-model of {family.whole}: {error} Use a group of sub-models, such as "
                "tiny-resnets, tiny-vits or tiny-widths."
            ) from None
        if splitting == "none":
            continue
        narrower = next((n for n, index in cut.items() if any(part is not None for part in index)), None)
        missing = next((name for name in family.skeleton().state_dict() if name not in cut), None)
        if splitting == "width" and missing is not None:
            raise InputError(
                f"splitting is 'width', but {spec} lacks '{missing}' of {family.whole}: it is a sub-model by depth; "
                "use splitting: stage or layer"
            )
        if splitting != "width" and narrower is not None:
            raise InputError(
                f"splitting is '{splitting}', but {spec} has fewer channels than {family.whole} in '{narrower}'; use "
                "splitting: width"
            )
    if splitting in ("layer", "stage"):
        stages = len(block_names(family.skeleton()))
        if (splitting == "layer") != (stages == 1):
            raise InputError(
                f"splitting is '{splitting}', but {family.whole} has {stages} stage{'s' if stages > 1 else ''}; use "
                f"splitting: {'layer' if stages == 1 else 'stage'}"
            )
