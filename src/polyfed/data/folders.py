"""Reader of image folders: train/<class>/*, test/<class>/* and valid/<class>/* (or val, validation)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyfed.data.arrays import Part
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.data.image_decoding import PictureStack
from polyfed.errors import InputError, nearest

_FOLDERS = {"train": ("train",), "valid": ("valid", "val", "validation"), "test": ("test",)}
_ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}
# Tiny-ImageNet keeps its validation pictures in one folder and their classes in this table.
_TABLE = "val_annotations.txt"


def _place(folder: Path, split: str) -> Path | None:
    return next((folder / name for name in _FOLDERS[split] if (folder / name).is_dir()), None)


def find_folders(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """All pictures below the folders of the parts, in a fixed order."""
    found: SplitFiles = {}
    for split in _FOLDERS:
        place = _place(folder, split)
        if place is None or (split == "test" and known.valid_is_test and "valid" in found):
            continue
        files = sorted(file for file in place.rglob("*") if file.suffix.lower() in _ENDINGS and file.is_file())
        if files:
            found[split] = [*files, *(table for table in (place / _TABLE,) if table.is_file())]
    return found if "train" in found else None


def read_folders(folder: Path, found: SplitFiles, known: KnownDataset) -> Splits:
    """Decode all pictures. Classes are the subfolders of `train`, sorted by name (by number if all are numbers)."""
    splits = Splits("image folders")
    base = {split: _place(folder, split) or folder for split in found}
    names = {file.relative_to(base["train"]).parts[0] for file in found["train"] if file.parent != base["train"]}
    classes = sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)
    for split, files in found.items():
        table = _table(files[-1]) if files[-1].name == _TABLE else {}
        pictures = [file for file in files if file.name != _TABLE]
        stack = PictureStack(len(pictures), channels=known.channels, resize=known.resize)
        labels = []
        for file in pictures:
            name = table.get(file.name) or file.relative_to(base[split]).parts[0]
            if name not in names:
                raise InputError(
                    f"{file} belongs to class '{name}', which has no folder in train; {nearest(name, names)}"
                )
            labels.append(classes.index(name))
            stack.add(file, str(file))
        splits.add(split, Part(stack.pixels(), np.array(labels, dtype=np.int64)), str(base[split]))
        splits.jpeg |= stack.jpeg
        splits.resized |= stack.resized
    splits.class_names = tuple(classes)
    return splits


def _table(file: Path) -> dict[str, str]:
    """Picture name to class, from a table whose first two columns are these."""
    rows = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    return {row[0]: row[1] for row in rows if len(row) >= 2}
