"""Stand-ins for datasets that are not on this machine: as many samples of the same shape, without values.

`polyfed check` uses them to describe an experiment before its data is downloaded.
"""

from __future__ import annotations

from pathlib import Path

from polyfed.data.catalogue import KnownDataset
from polyfed.data.dataset import Dataset, Split
from polyfed.errors import InputError

SOURCE = "not on this machine"


def stand_in(known: KnownDataset, *, merged: bool = False) -> Dataset:
    """Return a dataset with the published numbers of samples and classes of equal size.

    `merged` adds the test samples to the training samples. All samples share the memory of one.
    """
    shape = known.shape
    if shape is None or not known.train:
        raise InputError(f"dataset '{known.name}' has no published size; set data.root to a folder with its files")
    if known.resize is not None and len(shape) == 3:
        shape = (shape[0], known.resize, known.resize)
    train = _split(known, shape, known.train + (known.test if merged else 0))
    return Dataset(
        name=known.name,
        classes=known.classes,
        shape=shape,
        class_names=tuple(str(label) for label in range(known.classes)),
        train=train,
        test=_split(known, shape, known.test) if known.test and not merged else None,
        source=SOURCE,
        folder=Path(),
        vocabulary=known.format.vocabulary if known.kind == "tokens" else 0,
    )


def _split(known: KnownDataset, shape: tuple[int, ...], samples: int) -> Split:
    import torch

    dtype = {"picture": torch.uint8, "numbers": torch.float32, "tokens": torch.int64}[known.kind]
    inputs = torch.zeros(1, *shape, dtype=dtype).expand(samples, *shape)
    return Split(inputs, torch.arange(samples) % known.classes)
