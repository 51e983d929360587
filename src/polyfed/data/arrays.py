"""Datasets as plain arrays in memory, which every reader produces, and their validation.

The dtype of the inputs gives their kind: uint8 arrays are pictures, float32 arrays are numbers such as sensor values
or table columns, int64 arrays are tokens of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.errors import InputError

Pixels = npt.NDArray[np.uint8]
Inputs = npt.NDArray[Any]  # uint8, float32 or int64, (n, ...)
Ints = npt.NDArray[np.int64]
MOST_CLASSES = 100_000  # larger labels are rather identifiers, such as numbers of patients
KINDS = {"uint8": "picture", "float32": "numbers", "int64": "tokens"}


@dataclass(frozen=True)
class Part:
    """One split: inputs of any shape, one label per sample, and further columns, such as the hospital."""

    inputs: Inputs
    labels: Ints
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Decoded:
    """A dataset in memory, ready to be written to the cache."""

    train: Part
    test: Part | None
    class_names: tuple[str, ...]
    source: str
    vocabulary: int = 0  # number of tokens, including 0 for padding; 0 for inputs that are not tokens
    features: tuple[str, ...] = ()  # columns of a table that make up a sample, if the files name them


def as_pixels(values: Any, where: str) -> Pixels:
    """Return pictures as uint8 (n, C, H, W), from uint8 or integers from 0 to 255, with or without channels.

    In four dimensions the second axis holds the channels if it has 1 or 3 entries, otherwise the last axis does.
    """
    array = _channels_first(np.asarray(values))
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise InputError(
            f"{where}: pictures have shape {tuple(np.shape(values))}; expected (n, H, W), (n, C, H, W) or "
            "(n, H, W, C) with 1 or 3 channels and at least one picture"
        )
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind not in "iu":
        raise InputError(f"{where}: pictures have type {array.dtype}; expected integers from 0 to 255")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 255:
        raise InputError(f"{where}: pixel values range from {low} to {high}; expected 0 to 255")
    return np.ascontiguousarray(array.astype(np.uint8))


def as_inputs(values: Any, where: str, *, vocabulary: int = 0) -> Inputs:
    """Return samples of any shape with the dtype of their kind.

    uint8 arrays of three or four dimensions are pictures. Floats become float32, without scaling.
    Other integers are tokens if `vocabulary` is given, and numbers otherwise.
    """
    array = to_array(values, where, "samples")
    if array.dtype == np.uint8 and array.ndim in (3, 4) and not vocabulary:
        return as_pixels(array, where)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{where}: inputs have type {array.dtype}; expected numbers")
    if array.ndim < 2 or 0 in array.shape:
        raise InputError(
            f"{where}: inputs have shape {array.shape}; expected (n, ...) with at least one value per sample"
        )
    if vocabulary:
        return _as_tokens(array, where, vocabulary)
    floats = np.ascontiguousarray(_channels_first(array), dtype=np.float32)
    wrong = np.argwhere(~np.isfinite(floats))
    if len(wrong):
        place = ", ".join(str(position) for position in wrong[0])
        raise InputError(
            f"{where}: {len(wrong)} values are missing or not finite, the first at ({place}); fill them in or "
            "drop the samples"
        )
    return floats


def _as_tokens(array: Inputs, where: str, vocabulary: int) -> Ints:
    if array.dtype.kind not in "iu":
        raise InputError(f"{where}: tokens have type {array.dtype}; expected integers")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= vocabulary:
        raise InputError(f"{where}: tokens range from {low} to {high}; expected 0 to {vocabulary - 1}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _channels_first(array: Inputs) -> Inputs:
    if array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        return array.transpose(0, 3, 1, 2)
    return array


def to_array(values: Any, where: str, what: str) -> Inputs:
    """Return arrays, tensors, data frames or lists as an array. Raise `InputError` if they do not form one."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # NumPy has no bfloat16
    try:
        array = np.asarray(values)
        # in a list of texts, NumPy would also write None and NaN as texts
        return np.asarray(values, dtype=object) if array.dtype.kind in "US" and isinstance(values, list) else array
    except (TypeError, ValueError):
        raise InputError(f"{where}: the {what} do not form an array; all of them need one shape and type") from None


def label_array(values: Any, where: str) -> Inputs:
    """Return labels as an array (n,), also those given as one column."""
    array = to_array(values, where, "labels")
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim == 2:
        raise InputError(
            f"{where}: labels have shape {array.shape}, several per sample; multi-label tasks are not supported, one "
            "label per sample is needed"
        )
    if array.ndim != 1:
        raise InputError(f"{where}: labels have shape {array.shape}; expected one label per sample")
    return array


def joined_labels(parts: Sequence[Any], where: str) -> Inputs:
    """Return the labels of several splits or clients as one array. Raise `InputError` if only some are text."""
    arrays = [label_array(part, where) for part in parts]
    texts = [array.dtype.kind in "OUS" for array in arrays]
    if any(texts) and not all(texts):
        raise InputError(f"{where}: some labels are text and others are numbers; give all labels in one form")
    return np.concatenate(arrays)


def as_labels(values: Any, where: str) -> Ints:
    """Return labels as int64 (n,), from integers or from floats that are whole numbers."""
    array = label_array(values, where)
    if array.dtype.kind == "f" and bool(np.all(array == np.rint(array))):
        array = array.astype(np.int64)
    if array.dtype.kind == "f":
        raise InputError(
            f"{where}: labels such as {array[array != np.rint(array)][0]:g} are not whole numbers; regression is not "
            "supported, labels must be classes"
        )
    if array.dtype.kind not in "iu":
        raise InputError(f"{where}: labels have type {array.dtype}; expected whole numbers from 0")
    return array.astype(np.int64)


def named_labels(values: Any, where: str) -> tuple[Any, tuple[str, ...] | None]:
    """Return labels as integers, and the class names if the labels are text."""
    array = label_array(values, where)
    if array.dtype.kind not in "OUSb":
        return as_labels(array, where), None
    missing = [position for position, value in enumerate(array) if _is_missing(value)]
    if missing:
        raise InputError(f"{where}: {len(missing)} labels are missing, the first in row {missing[0]}")
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in array]
    names = tuple(sorted(set(texts)))
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[text] for text in texts], dtype=np.int64), names


def _is_missing(value: Any) -> bool:
    """Return whether a label is None, empty, NaN, or a missing value of pandas."""
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, str) and not value)


def renumbered(labels: Ints, names: Sequence[str], class_names: Sequence[str], where: str) -> Ints:
    """Return labels of `names` as positions in `class_names`."""
    unknown = [name for name in names if name not in class_names]
    if unknown:
        raise InputError(
            f"{where}: found label '{unknown[0]}', which is not in class_names: {', '.join(class_names)}"
        )
    positions = np.array([list(class_names).index(name) for name in names], dtype=np.int64)
    return positions[labels]


def number_names(classes: int, where: str) -> tuple[str, ...]:
    """Return the numbers of the classes as their names. Raise `InputError` if labels look like identifiers."""
    if classes > MOST_CLASSES:
        raise InputError(
            f"{where}: the largest label is {classes - 1}; labels number the classes from 0, up to "
            f"{MOST_CLASSES - 1}; give labels that are not such numbers as text"
        )
    return tuple(str(label) for label in range(classes))


def checked_part(
    inputs: Inputs, labels: Ints, where: str, columns: Mapping[str, tuple[str, ...]] | None = None
) -> Part:
    """Return a part after checking that each sample has a label and an entry in every column."""
    if len(inputs) != len(labels):
        raise InputError(
            f"{where}: found {len(inputs)} samples but {len(labels)} labels; each sample needs one label"
        )
    if len(inputs) == 0:
        raise InputError(f"{where}: found no samples; at least one is needed")
    for name, values in (columns or {}).items():
        if len(values) != len(labels):
            raise InputError(f"{where}: column '{name}' has {len(values)} entries for {len(labels)} samples")
    return Part(inputs, labels, dict(columns or {}))


def concatenated(parts: list[Part]) -> Part:
    """Concatenate several parts. Drop columns that one of them lacks."""
    if len(parts) == 1:
        return parts[0]
    common = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: tuple(value for part in parts for value in part.columns[name]) for name in common}
    return Part(np.concatenate([p.inputs for p in parts]), np.concatenate([p.labels for p in parts]), columns)


def check_labels(labels: Ints, classes: int, where: str) -> None:
    """Raise `InputError` for a label outside of the classes."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"{where}: found label {low if low < 0 else high}; with {classes} classes, labels range from 0 to "
            f"{classes - 1}"
        )


def check_decoded(data: Decoded, where: str) -> Decoded:
    """Return the dataset after checking its labels, and that both splits have inputs of one shape and type."""
    if 0 in data.train.inputs.shape:
        raise InputError(
            f"{where}: training samples have shape {size_text(data.train.inputs.shape[1:])}, which is empty"
        )
    check_labels(data.train.labels, len(data.class_names), f"{where}, training split")
    if data.test is not None:
        check_labels(data.test.labels, len(data.class_names), f"{where}, test split")
        train, test = data.train.inputs, data.test.inputs
        if test.shape[1:] != train.shape[1:] or test.dtype != train.dtype:
            raise InputError(
                f"{where}: training samples are {size_text(train.shape[1:])} ({train.dtype}) but test samples "
                f"{size_text(test.shape[1:])} ({test.dtype}); both splits need one shape and type"
            )
    return data


def size_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text, such as 3x32x32."""
    return "x".join(str(extent) for extent in shape)
