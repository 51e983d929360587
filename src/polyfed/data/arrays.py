"""The plain arrays every loader ends in, and the checks that make them safe to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.errors import InputError

Pixels = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One split in memory: pixels (n, C, H, W) and one label per picture."""

    images: Pixels
    labels: Ints


@dataclass(frozen=True)
class Decoded:
    """A whole dataset in memory, as it goes into the cache."""

    train: Part
    test: Part | None
    class_names: tuple[str, ...]
    source: str


def as_pixels(values: Any, where: str) -> Pixels:
    """Pictures as uint8 (n, C, H, W), from uint8 or integers 0..255 or floats in [0, 1], with or without channels.

    In four dimensions the second axis is taken for the channels if it has 1 or 3 entries, else the last one.
    """
    array = np.asarray(values)
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise InputError(
            f"{where}: images have shape {tuple(np.shape(values))}, but (n, H, W), (n, C, H, W) or (n, H, W, C) "
            "with 1 or 3 channels and at least one picture is needed"
        )
    return np.ascontiguousarray(_as_bytes(array, where))


def _as_bytes(array: npt.NDArray[Any], where: str) -> Pixels:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "f":
        low, high, limit = float(array.min()), float(array.max()), 1.0
    elif array.dtype.kind in "iu":
        low, high, limit = float(array.min()), float(array.max()), 255.0
    else:
        raise InputError(f"{where}: images have type {array.dtype}, but numbers are needed")
    if not (low >= 0.0 and high <= limit):  # written so that NaN fails as well
        raise InputError(
            f"{where}: pixel values go from {low:g} to {high:g}, but uint8 or floats in [0, 1] are needed"
        )
    if limit == 1.0:
        return np.rint(array * 255.0).astype(np.uint8)
    return array.astype(np.uint8)


def as_labels(values: Any, where: str) -> Ints:
    """Labels as int64 (n,), from any integers, or from floats that are whole numbers."""
    array = np.asarray(values)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise InputError(f"{where}: labels have shape {array.shape}, but one number per picture is needed")
    if array.dtype.kind == "f" and bool(np.all(array == np.rint(array))):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"{where}: labels have type {array.dtype}, but whole numbers from 0 are needed")
    return array.astype(np.int64)


def checked_part(images: Pixels, labels: Ints, where: str) -> Part:
    """The two as one part, after checking that each picture has its label."""
    if len(images) != len(labels):
        raise InputError(f"{where}: found {len(images)} images but {len(labels)} labels; each image needs one label")
    if len(images) == 0:
        raise InputError(f"{where}: found no images, but at least one is needed")
    return Part(images, labels)


def joined(parts: list[Part]) -> Part:
    """Several parts one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Part(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))


def check_labels(labels: Ints, classes: int, where: str) -> None:
    """Refuse labels that are not classes."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"{where}: found label {low if low < 0 else high}, "
            f"but with {classes} classes labels go from 0 to {classes - 1}"
        )


def check_decoded(data: Decoded, where: str) -> Decoded:
    """The dataset itself, after checking labels and that both parts have pictures of one size."""
    if 0 in data.train.images.shape:
        raise InputError(f"{where}: training images are {_size(data.train.images)}, but none of it may be 0")
    check_labels(data.train.labels, len(data.class_names), f"{where}, training part")
    if data.test is not None:
        check_labels(data.test.labels, len(data.class_names), f"{where}, test part")
        if data.test.images.shape[1:] != data.train.images.shape[1:]:
            raise InputError(
                f"{where}: training images are {_size(data.train.images)} but test images "
                f"{_size(data.test.images)}; both parts need one size"
            )
    return data


def _size(images: Pixels) -> str:
    return "x".join(str(extent) for extent in images.shape[1:])
