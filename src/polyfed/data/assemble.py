"""From the parts a reader found (train, valid, test) to one dataset, by the rules of its catalogue row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from polyfed.data.arrays import Decoded, Part, check_labels, joined
from polyfed.data.catalogue import Known
from polyfed.errors import InputError

Found = dict[str, list[Path]]  # files per part; parts are "train", "valid" and "test"


@dataclass
class Parts:
    """What a reader made of the files: the parts, where each came from, class names if they say, and remarks."""

    kind: str
    train: Part | None = None
    valid: Part | None = None
    test: Part | None = None
    class_names: tuple[str, ...] | None = None
    jpeg: bool = False
    resized: bool = False
    where: dict[str, str] = field(default_factory=dict)

    def put(self, word: str, part: Part, where: str) -> None:
        """Keep one part."""
        setattr(self, word, part)
        self.where[word] = where


def assemble(known: Known, parts: Parts) -> Decoded:
    """Decide what trains and what tests, check the labels and say in `source` what is not as published."""
    if parts.train is None:
        raise InputError(f"dataset '{known.name}': only a test part was found; a training part is needed")
    names = parts.class_names or tuple(str(label) for label in range(known.classes))
    if len(names) > known.classes:
        raise InputError(
            f"{parts.where['train']} has {len(names)} classes, but '{known.name}' has at most {known.classes}"
        )
    for word, where in parts.where.items():
        check_labels(getattr(parts, word).labels, len(names), where)
    train, test, remarks = parts.train, parts.test, []
    if parts.valid is not None:
        if known.valid_joins_train:
            train = joined([parts.train, parts.valid])
        elif test is None or known.valid_is_test:
            test = parts.valid
            remarks.append("test is the validation part")
        else:
            remarks.append("validation part unused")
    if parts.jpeg:
        remarks.insert(0, "jpeg" if known.jpeg_original else "jpeg copies")
    if parts.resized and known.resize is not None:
        remarks.append(f"central square scaled to {known.resize}x{known.resize}")
    shape = train.images.shape[1:]
    if shape != known.shape:
        remarks.append(f"{_size(shape)} instead of {_size(known.shape)}")
    source = f"{parts.kind} ({', '.join(remarks)})" if remarks else parts.kind
    return Decoded(train, test, names, source)


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(str(extent) for extent in shape)
