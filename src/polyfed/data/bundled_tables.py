"""Tables that ship with scikit-learn: `breast_cancer` (569 samples, 2 classes) and `wine` (178 samples, 3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyfed.data.arrays import Decoded, Part
from polyfed.data.digits import bundled_file, every_fifth_of_each_class
from polyfed.errors import InputError

BUNDLED_TABLES = {"breast_cancer": "breast_cancer.csv", "wine": "wine_data.csv"}


def table_file(name: str) -> Path | None:
    """Return scikit-learn's file with a table."""
    return bundled_file(BUNDLED_TABLES[name])


def read_table(name: str, file: Path) -> Decoded:
    """Read a table whose first line holds the counts and the class names. Models normalise the columns themselves."""
    try:
        with file.open(encoding="ascii") as stream:
            class_names = tuple(stream.readline().strip().split(",")[2:])
            table = np.loadtxt(stream, delimiter=",")
        values, labels = table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{file} is damaged ({error}); reinstall scikit-learn") from error
    held_out = every_fifth_of_each_class(labels)
    return Decoded(
        train=Part(values[~held_out], labels[~held_out]),
        test=Part(values[held_out], labels[held_out]),
        class_names=class_names,
        source="scikit-learn",
    )
