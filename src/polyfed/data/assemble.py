"""Assembly of a dataset from the splits of a reader (train, valid, test), by the rules of its catalogue entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from polyfed.data.arrays import KINDS, Decoded, Part, check_labels, concatenated, number_names
from polyfed.data.catalogue import KnownDataset, check_known
from polyfed.errors import InputError

SplitFiles = dict[str, list[Path]]  # files by split; splits are "train", "valid" and "test"


@dataclass
class Splits:
    """Output of a reader: the splits, the origin of each split, and class names if the files have them."""

    kind: str
    train: Part | None = None
    valid: Part | None = None
    test: Part | None = None
    class_names: tuple[str, ...] | None = None
    vocabulary: int = 0
    features: tuple[str, ...] = ()  # columns of a table that make up a sample
    jpeg: bool = False
    resized: bool = False
    where: dict[str, str] = field(default_factory=dict)

    def add(self, split: str, part: Part, where: str) -> None:
        """Add one split."""
        setattr(self, split, part)
        self.where[split] = where


def assemble(known: KnownDataset, splits: Splits) -> Decoded:
    """Select and check the training and test splits. `source` names differences from the published data."""
    if splits.train is None:
        raise InputError(f"dataset '{known.name}': found only a test split; a training split is needed")
    names = splits.class_names
    if names is None:
        parts = [getattr(splits, split) for split in splits.where]
        highest = max(int(part.labels.max()) for part in parts)
        names = number_names(max(known.classes, highest + 1), f"dataset '{known.name}'")
    shape = tuple(int(extent) for extent in splits.train.inputs.shape[1:])
    check_known(known, shape, KINDS[str(splits.train.inputs.dtype)], len(names))
    for split, where in splits.where.items():
        check_labels(getattr(splits, split).labels, len(names), where)
    train, test, remarks = splits.train, splits.test, []
    if splits.valid is not None:
        if known.valid_joins_train:
            train = concatenated([splits.train, splits.valid])
        elif test is None or known.valid_is_test:
            test = splits.valid
            remarks.append("test split is the validation split")
        else:
            remarks.append("validation split unused")
    if splits.jpeg:
        remarks.insert(0, "jpeg" if known.jpeg_original or known.kind == "any" else "jpeg copies")
    if splits.resized and known.resize is not None:
        remarks.append(f"central square scaled to {known.resize}x{known.resize}")
    remarks += _subset(known, len(names), len(train.labels))
    source = f"{splits.kind} ({', '.join(remarks)})" if remarks else splits.kind
    return Decoded(train, test, names, source, splits.vocabulary, splits.features)


def _subset(known: KnownDataset, classes: int, samples: int) -> list[str]:
    """Return remarks for the user if the files hold only a part of a known dataset."""
    remarks = []
    if 0 < classes < known.classes:
        remarks.append(f"{classes} of {known.classes} classes")
    if known.train and samples < known.train:
        remarks.append(f"{samples:,} of {known.train:,} training samples")
    return remarks
