"""Whether a config's `splitting` fits its method and its models: checked before anything runs."""

from __future__ import annotations

from polyfed import catalogue
from polyfed.core.method import Method
from polyfed.errors import InputError
from polyfed.models.slicing import Family, block_names


def one_model_methods() -> list[str]:
    """The methods that keep one server model."""
    return [name for name in catalogue.methods() if catalogue.load(name).one_model]


def splittable_methods() -> list[str]:
    """Those of them that leave it to the config what clients hold of it."""
    return [name for name in one_model_methods() if catalogue.load(name).needs.same_architecture]


def check_method(method: Method, splitting: str) -> None:
    """Refuse a splitting that the method cannot follow."""
    if not (method.one_model and method.needs.same_architecture):
        own = "cuts its models itself" if method.needs.sub_models else "does not keep one server model"
        raise InputError(
            f"splitting is '{splitting}', but {type(method).__name__} {own}; set splitting: none, or use one of "
            f"{', '.join(splittable_methods())}"
        )


def check_family(family: Family, splitting: str) -> None:
    """Refuse client models that are no slices of the server's, or slices of another kind than the config says."""
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
        narrow = next((n for n, index in cut.items() if any(kept is not None for kept in index)), None)
        shallow = next((name for name in family.skeleton().state_dict() if name not in cut), None)
        if splitting == "width" and shallow is not None:
            raise InputError(
                f"splitting is 'width', but {spec} lacks '{shallow}' of {family.whole}: it is cut by depth; use "
                "splitting: stage or layer"
            )
        if splitting != "width" and narrow is not None:
            raise InputError(
                f"splitting is '{splitting}', but {spec} has fewer channels than {family.whole} in '{narrow}'; use "
                "splitting: width"
            )
    if splitting in ("layer", "stage"):
        stages = len(block_names(family.skeleton()))
        if (splitting == "layer") != (stages == 1):
            raise InputError(
                f"splitting is '{splitting}', but {family.whole} has {stages} stage{'s' if stages > 1 else ''}; use "
                f"splitting: {'layer' if stages == 1 else 'stage'}"
            )
