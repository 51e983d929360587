"""Weights in safetensors files: read them, and load them into a model with an error that names what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from polyfed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "model.safetensors"  # weights of a model in its folder


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, each with memory of its own."""
    import safetensors.torch

    try:
        content = safetensors.torch.load(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except Exception as error:  # safetensors raises its own types for files that are none
        raise InputError(f"{file} is not a complete safetensors file ({error})") from None
    return {name: tensor.clone() for name, tensor in content.items()}


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: str) -> None:
    """Raise `InputError` for the first tensor that is missing, unknown or of another shape or type."""
    for name, tensor in expected.items():
        if name not in weights:
            raise InputError(f"{where} has no tensor '{name}', which the model has; it holds {_names(weights)}")
        found = weights[name]
        if found.shape != tensor.shape:
            raise InputError(
                f"{where}: '{name}' has shape {tuple(found.shape)}, but the model needs {tuple(tensor.shape)}"
            )
        if found.dtype != tensor.dtype:
            raise InputError(f"{where}: '{name}' has type {found.dtype}, but the model needs {tensor.dtype}")
    unknown = [name for name in weights if name not in expected]
    if unknown:
        raise InputError(f"{where} has the tensor '{unknown[0]}', which the model does not have")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights into a model. Raise `InputError` if they do not fit; `where` names their source."""
    check_weights(model.state_dict(), weights, where)
    model.load_state_dict(weights, strict=True)


def split_names(weights: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """Return weights under the names of a split model.

    A file may have the names of the user's own module instead: those of the head become `head.*`, all others
    `backbone.*`. Names that fit neither way stay unchanged.
    """
    known = set(expected)
    if set(weights) <= known:
        return dict(weights)
    renamed = {name: f"backbone.{name}" for name in weights if f"backbone.{name}" in known}
    rest = [name for name in weights if name not in renamed]
    if len({name.rpartition(".")[0] for name in rest}) == 1:
        renamed |= {name: f"head.{name.rpartition('.')[2]}" for name in rest}
    return {renamed.get(name, name): tensor for name, tensor in weights.items()}


def _names(weights: Mapping[str, Tensor]) -> str:
    names = sorted(weights)
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
