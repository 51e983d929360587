"""The `digits` dataset: 1,797 pictures of 8x8 pixels that ship inside scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Decoded, Ints, Part
from polyfed.errors import InputError

_SIDE = 8
_BRIGHTEST = 16


def digits_file() -> Path | None:
    """Return scikit-learn's file with the digits."""
    return bundled_file("digits.csv.gz")


def bundled_file(name: str) -> Path | None:
    """Return a data file of scikit-learn, found without importing scikit-learn, which takes seconds."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "datasets" / "data" / name
    return file if file.is_file() else None


def read_digits(file: Path) -> Decoded:
    """Decode the file. It has no official test split: a fixed fifth of each class is the test split."""
    try:
        with gzip.open(file, "rt", encoding="ascii") as stream:
            table = np.loadtxt(stream, delimiter=",")
        values, labels = table[:, :-1], table[:, -1].astype(np.int64)
        images = np.rint(values * 255 / _BRIGHTEST).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise InputError(f"{file} is damaged ({error}); reinstall scikit-learn") from error
    held_out = every_fifth_of_each_class(labels)
    return Decoded(
        train=Part(images[~held_out], labels[~held_out]),
        test=Part(images[held_out], labels[held_out]),
        class_names=tuple(str(digit) for digit in range(10)),
        source="scikit-learn",
    )


def every_fifth_of_each_class(labels: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the third of every five samples of each class, in the order of the file."""
    rank = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    held_out: np.ndarray[Any, np.dtype[np.bool_]] = rank % 5 == 2
    return held_out
