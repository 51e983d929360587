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
# Tiny-ImageNet has all validation pictures in one folder, and their classes in this table.
_ANNOTATIONS = "val_annotations.txt"


def split_folder(folder: Path, split: str) -> Path | None:
    return next((folder / name for name in _FOLDERS[split] if (folder / name).is_dir()), None)


def find_pictures(folder: Path) -> list[Path]:
    """Return all pictures below a folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in _ENDINGS and file.is_file())


def find_folders(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the pictures of each split, sorted by path."""
    files: SplitFiles = {}
    for split in _FOLDERS:
        base = split_folder(folder, split)
        if base is None or (split == "test" and known.valid_is_test and "valid" in files):
            continue
        pictures = find_pictures(base)
        if pictures:
            files[split] = [*pictures, *(table for table in (base / _ANNOTATIONS,) if table.is_file())]
    return files if "train" in files else None


def read_folders(folder: Path, files: SplitFiles, known: KnownDataset) -> Splits:
    """Decode all pictures. Classes are the subfolders of `train`, sorted by name, or by value if all are numbers."""
    splits = Splits("image folders")
    base = {split: split_folder(folder, split) or folder for split in files}
    names = {file.relative_to(base["train"]).parts[0] for file in files["train"] if file.parent != base["train"]}
    classes = sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)
    for split, split_files in files.items():
        annotations = _read_annotations(split_files[-1]) if split_files[-1].name == _ANNOTATIONS else {}
        pictures = [file for file in split_files if file.name != _ANNOTATIONS]
        stack = PictureStack(len(pictures), channels=known.channels, resize=known.resize)
        labels = []
        for file in pictures:
            name = annotations.get(file.name) or file.relative_to(base[split]).parts[0]
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


def _read_annotations(file: Path) -> dict[str, str]:
    """Return the class of each picture. The first two columns of the table are picture name and class."""
    rows = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    return {row[0]: row[1] for row in rows if len(row) >= 2}
