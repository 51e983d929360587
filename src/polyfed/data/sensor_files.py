"""Reader of UCI HAR, human activity recognition with smartphones, in its published layout of text files.

`Inertial Signals` holds nine channels of 128 steps per window. The person of a window becomes the column `subject`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyfed.data.arrays import as_inputs, checked_part
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.errors import InputError

CHANNELS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")


def find_har(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the nine signal files, the labels and the persons of each split."""
    if known.name != "uci_har":
        return None
    split_files = {}
    for split in ("train", "test"):
        signals = [folder / split / "Inertial Signals" / f"{channel}_{split}.txt" for channel in CHANNELS]
        files = [*signals, folder / split / f"y_{split}.txt", folder / split / f"subject_{split}.txt"]
        if all(file.is_file() for file in files):
            split_files[split] = files
    return split_files or None


def read_har(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Read the windows as (n, 9, 128) floats."""
    splits = Splits("UCI HAR text files")
    for split, (*signals, labels, persons) in split_files.items():
        try:
            windows = np.stack([np.loadtxt(file, dtype=np.float32, ndmin=2) for file in signals], axis=1)
            numbers = np.loadtxt(labels, dtype=np.int64, ndmin=1) - 1  # activities are numbered from 1
            subjects = tuple(str(person) for person in np.loadtxt(persons, dtype=np.int64, ndmin=1))
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: the {split} split of UCI HAR is damaged ({error})") from error
        inputs = as_inputs(windows, str(folder))
        splits.add(split, checked_part(inputs, numbers, str(folder), {"subject": subjects}), str(folder / split))
    return splits
