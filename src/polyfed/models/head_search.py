"""Find the head of a module: the Linear layer that comes last and has one output per class."""

from __future__ import annotations

from torch import nn

from polyfed.errors import InputError
from polyfed.models.custom_modules import from_module
from polyfed.models.spec import Shape


def find_head(module: nn.Module, *, shape: Shape, classes: int, vocabulary: int | None = None) -> str:
    """Return the dotted name of the head. Raise `InputError` if no layer can be cut off.

    The weights of the module must be real, not on the meta device: outputs before and after the cut are compared.
    """
    kind = type(module).__name__
    linears = {name: part for name, part in module.named_modules() if name and isinstance(part, nn.Linear)}
    candidates: list[str] = [name for name, part in linears.items() if part.out_features == classes]
    first_error: InputError | None = None
    for name in reversed(candidates):
        try:
            from_module(module, name, shape=shape, classes=classes, vocabulary=vocabulary)
        except InputError as error:
            first_error = first_error or error
        else:
            return name
    if first_error is not None:
        raise first_error
    if linears:
        last, layer = list(linears.items())[-1]
        raise InputError(
            f"{kind} has no Linear layer with {classes} outputs, one per class of the data; its last Linear, "
            f"'{last}', has {layer.out_features}."
        )
    raise InputError(
        f"{kind} has no Linear layer; end it with a Linear that has {classes} outputs, one per class, or pass a "
        "polyfed.models.SplitModel."
    )
