"""Readers of array files: SVHN's `.mat`, CIFAR's binary version and `.npz`.

The `.npz` layout is either one file `<name>.npz` with x_train, y_train, x_test, y_test or x and y, or `train.npz` and
`test.npz` (`valid.npz`) with x and y. uint8 arrays are pictures; floats may have any shape.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import (
    Inputs,
    Part,
    as_inputs,
    as_labels,
    as_pixels,
    checked_part,
    concatenated,
    named_labels,
)
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.errors import InputError

_CIFAR_PIXELS = 3 * 32 * 32


def _glob_splits(folder: Path, patterns: dict[str, str]) -> SplitFiles | None:
    """Return the files of each split that match its pattern, or None if there are none."""
    matches = {split: sorted(folder.glob(pattern)) for split, pattern in patterns.items()}
    return {split: files for split, files in matches.items() if files} or None


def find_mat(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the files of SVHN's cropped digits. The split `extra` is not used."""
    if known.name != "svhn":
        return None
    return _glob_splits(folder, {"train": "train_32x32.mat", "test": "test_32x32.mat"})


def read_mat(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Read X with shape (H, W, C, n) and y, in which 10 stands for the digit 0."""
    splits = Splits("mat files")
    for split, (file,) in split_files.items():
        content = _load_mat(file)
        images = np.asarray(content["X"])
        if images.ndim != 4:
            raise InputError(f"{file}: X has shape {images.shape}, expected (H, W, C, n)")
        labels = as_labels(content["y"], str(file))
        labels = np.where(labels == 10, 0, labels)
        splits.add(
            split, checked_part(as_pixels(images.transpose(3, 2, 0, 1), str(file)), labels, str(file)), str(file)
        )
    return splits


def _load_mat(file: Path) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content: dict[str, Any] = loadmat(file, variable_names=["X", "y"])
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, MatReadError) as error:
        raise InputError(
            f"{file} is not a readable .mat file ({error}); expected MATLAB 5 or older, as SVHN is published"
        ) from error
    for name in ("X", "y"):
        if name not in content:
            raise InputError(f"{file} has no array '{name}'; X and y are needed")
    return content


def find_cifar(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the files of the binary version of CIFAR. The Python version is pickled; pickles are never loaded."""
    if known.name not in ("cifar10", "cifar100"):
        return None
    if known.name == "cifar10":
        patterns = {"train": "data_batch_*.bin", "test": "test_batch.bin"}
        pickled: tuple[str, ...] = ("data_batch_1",)
    else:
        patterns = {"train": "train.bin", "test": "test.bin"}
        pickled = ("train", "meta")
    split_files = _glob_splits(folder, patterns)
    if split_files is None and all((folder / name).is_file() for name in pickled):
        raise InputError(
            f"{folder} holds the Python version of {known.name}, which is pickled; polyfed does not load it because "
            "a pickle can run code; use the binary version (.bin), parquet, .npz or image folders"
        )
    return split_files


def read_cifar(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Read rows of one label byte (CIFAR-100: coarse and fine label) and 3072 bytes of pixels."""
    label_bytes = 1 if known.name == "cifar10" else 2
    splits = Splits("binary files")
    for split, files in split_files.items():
        parts = []
        for file in files:
            content = np.fromfile(file, dtype=np.uint8)
            row_size = label_bytes + _CIFAR_PIXELS
            if len(content) == 0 or len(content) % row_size:
                raise InputError(
                    f"{file} is damaged: it has {len(content)} bytes, which is not a multiple of {row_size}"
                )
            rows = content.reshape(-1, row_size)
            images = np.ascontiguousarray(rows[:, label_bytes:]).reshape(-1, 3, 32, 32)
            parts.append(Part(images, rows[:, label_bytes - 1].astype(np.int64)))
        splits.add(split, concatenated(parts), str(files[0]))
    splits.class_names = _cifar_names(folder, known)
    return splits


def _cifar_names(folder: Path, known: KnownDataset) -> tuple[str, ...] | None:
    file = folder / ("batches.meta.txt" if known.name == "cifar10" else "fine_label_names.txt")
    if not file.is_file():
        return None
    names = tuple(file.read_text(encoding="utf-8").split())
    return names if len(names) == known.classes else None


def find_npz(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return one file whose name begins with the dataset's name, or one file per split."""
    exact = folder / f"{known.name}.npz"
    if exact.is_file():
        return {"train": [exact]}
    files = _glob_splits(folder, {"train": "train.npz", "valid": "valid.npz", "test": "test.npz"})
    single = sorted(folder.glob(f"{known.name}*.npz"))
    return files or ({"train": single[:1]} if single else None)


def read_npz(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Read either .npz layout. Further arrays with one entry per sample become columns."""
    splits = Splits("npz files")
    for split, (file,) in split_files.items():
        arrays = load_npz(file)
        suffixes = {split: ""}
        if "x_train" in arrays:
            suffixes = {"train": "_train", "test": "_test"} if "x_test" in arrays else {"train": "_train"}
        for part, suffix in suffixes.items():
            for name in (f"x{suffix}", f"y{suffix}"):
                if name not in arrays:
                    raise InputError(
                        f"{file} has no array '{name}'; it holds {', '.join(sorted(arrays)) or 'nothing'}"
                    )
            labels, names = named_labels(arrays[f"y{suffix}"], str(file))
            inputs = decode_inputs(arrays[f"x{suffix}"], known, str(file))
            splits.class_names = names or splits.class_names
            columns = {
                name.removesuffix(suffix): tuple(str(value) for value in values)
                for name, values in arrays.items()
                if name not in (f"x{suffix}", f"y{suffix}") and name.endswith(suffix) and values.shape == labels.shape
            }
            splits.add(part, checked_part(inputs, labels, str(file), columns), str(file))
    return splits


def decode_inputs(values: Any, known: KnownDataset, where: str) -> Inputs:
    """Return the inputs in their type. Pictures of a known dataset may be floats in [0, 1]."""
    if known.kind != "picture" or values.dtype.kind != "f":
        return as_pixels(values, where) if known.kind == "picture" else as_inputs(values, where)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0.0 and high <= 1.0):  # this form of the condition also catches NaN
        raise InputError(f"{where}: pixel values range from {low:g} to {high:g}; expected uint8 or floats in [0, 1]")
    return as_pixels(np.rint(values * 255.0).astype(np.uint8), where)


def load_npz(file: Path) -> dict[str, Any]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is not a readable .npz file of plain arrays ({error})") from error
