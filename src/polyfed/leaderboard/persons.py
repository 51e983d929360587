"""The data of the scenario har-persons: UCI HAR, with some persons as clients and others as the common test set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from polyfed.data import load
from polyfed.errors import InputError

COLUMN = "subject"
CLIENTS = 8


def split_persons(folder: Path, out: Path) -> Path:
    """Write the data of the scenario into `out/uci_har`, and return this folder.

    `folder` holds UCI HAR as published. Only its training split is used: the eight persons with the most windows are
    the clients, and the other persons form the common test set. Values are rounded to half precision.
    """
    target = out / "uci_har"
    files = {split: target / f"{split}.npz" for split in ("train", "test")}
    if all(file.is_file() for file in files.values()):
        return target
    train = load("uci_har", root=folder).train
    persons = train.columns.get(COLUMN, ())
    counts = Counter(persons)
    if len(counts) <= CLIENTS:
        raise InputError(f"{folder} has {len(counts)} persons in its training split; expected more than {CLIENTS}")
    clients = sorted(counts, key=lambda person: (-counts[person], person))[:CLIENTS]
    is_client = np.isin(np.asarray(persons), clients)
    target.mkdir(parents=True, exist_ok=True)
    for split, chosen in (("train", is_client), ("test", ~is_client)):
        windows = train.inputs.numpy()[chosen].astype(np.float16)
        subjects = np.asarray(persons)[chosen]
        np.savez_compressed(files[split], x=windows, y=train.labels.numpy()[chosen], subject=subjects)
    return target
