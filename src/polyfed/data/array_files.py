"""Readers of whole arrays in one file: SVHN's `.mat`, CIFAR's binary version and `.npz`.

The `.npz` layout is either one file `<name>.npz` with x_train, y_train, x_test, y_test or x and y, or `train.npz` and
`test.npz` (`valid.npz`) with x and y. uint8 arrays are pictures; floats of any shape are numbers.
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


def _present(folder: Path, names: dict[str, str]) -> SplitFiles | None:
    found = {split: sorted(folder.glob(pattern)) for split, pattern in names.items()}
    return {split: files for split, files in found.items() if files} or None


def find_mat(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """SVHN's cropped digits; the part `extra` is not used."""
    if known.name != "svhn":
        return None
    return _present(folder, {"train": "train_32x32.mat", "test": "test_32x32.mat"})


def read_mat(folder: Path, found: SplitFiles, known: KnownDataset) -> Splits:
    """X is (H, W, C, n); y is a column in which 10 stands for the digit 0."""
    splits = Splits("mat files")
    for split, (file,) in found.items():
        content = _mat_content(file)
        images = np.asarray(content["X"])
        if images.ndim != 4:
            raise InputError(f"{file}: X has shape {images.shape}, but (H, W, C, n) is needed")
        labels = as_labels(content["y"], str(file))
        labels = np.where(labels == 10, 0, labels)
        splits.add(
            split, checked_part(as_pixels(images.transpose(3, 2, 0, 1), str(file)), labels, str(file)), str(file)
        )
    return splits


def _mat_content(file: Path) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content: dict[str, Any] = loadmat(file, variable_names=["X", "y"])
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, MatReadError) as error:
        raise InputError(f"{file} is not a readable .mat file ({error}); SVHN's format 1 or 2 is needed") from error
    for name in ("X", "y"):
        if name not in content:
            raise InputError(f"{file} has no array '{name}'; X and y are needed")
    return content


def find_cifar(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """The binary version of CIFAR. The python version is pickled, and pickles are never read."""
    if known.name not in ("cifar10", "cifar100"):
        return None
    ten = known.name == "cifar10"
    names = {"train": "data_batch_*.bin" if ten else "train.bin", "test": "test_batch.bin" if ten else "test.bin"}
    found = _present(folder, names)
    if found is None and all((folder / name).is_file() for name in (("data_batch_1",) if ten else ("train", "meta"))):
        raise InputError(
            f"{folder} holds the python version of {known.name}, which is pickled and never read because a pickle "
            "can run code; use the binary version (.bin), parquet, .npz or image folders"
        )
    return found


def read_cifar(folder: Path, found: SplitFiles, known: KnownDataset) -> Splits:
    """Rows of one label byte (CIFAR-100: coarse, then fine) and 3072 bytes of pixels."""
    label_bytes = 1 if known.name == "cifar10" else 2
    splits = Splits("binary files")
    for split, files in found.items():
        pieces = []
        for file in files:
            content = np.fromfile(file, dtype=np.uint8)
            row = label_bytes + _CIFAR_PIXELS
            if len(content) == 0 or len(content) % row:
                raise InputError(f"{file} is damaged: it has {len(content)} bytes, which is no multiple of {row}")
            rows = content.reshape(-1, row)
            images = np.ascontiguousarray(rows[:, label_bytes:]).reshape(-1, 3, 32, 32)
            pieces.append(Part(images, rows[:, label_bytes - 1].astype(np.int64)))
        splits.add(split, concatenated(pieces), str(files[0]))
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
    files = _present(folder, {"train": "train.npz", "valid": "valid.npz", "test": "test.npz"})
    single = sorted(folder.glob(f"{known.name}*.npz"))
    return files or ({"train": single[:1]} if single else None)


def read_npz(folder: Path, found: SplitFiles, known: KnownDataset) -> Splits:
    """Read either layout of the module's description. Further arrays with one entry per sample become columns."""
    splits = Splits("npz files")
    for split, (file,) in found.items():
        arrays = _npz_arrays(file)
        endings = {split: ""}
        if "x_train" in arrays:
            endings = {"train": "_train", "test": "_test"} if "x_test" in arrays else {"train": "_train"}
        for part, ending in endings.items():
            for name in (f"x{ending}", f"y{ending}"):
                if name not in arrays:
                    raise InputError(
                        f"{file} has no array '{name}'; it holds {', '.join(sorted(arrays)) or 'nothing'}"
                    )
            labels, names = named_labels(arrays[f"y{ending}"], str(file))
            inputs = _inputs(arrays[f"x{ending}"], known, str(file))
            splits.class_names = names or splits.class_names
            columns = {
                name.removesuffix(ending): tuple(str(value) for value in values)
                for name, values in arrays.items()
                if name not in (f"x{ending}", f"y{ending}") and name.endswith(ending) and values.shape == labels.shape
            }
            splits.add(part, checked_part(inputs, labels, str(file), columns), str(file))
    return splits


def _inputs(values: Any, known: KnownDataset, where: str) -> Inputs:
    """Return samples as what they are; a known picture dataset may come as floats in [0, 1]."""
    if known.kind != "picture" or values.dtype.kind != "f":
        return as_pixels(values, where) if known.kind == "picture" else as_inputs(values, where)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0.0 and high <= 1.0):  # written so that NaN fails as well
        raise InputError(f"{where}: pixel values range from {low:g} to {high:g}; expected uint8 or floats in [0, 1]")
    return as_pixels(np.rint(values * 255.0).astype(np.uint8), where)


def _npz_arrays(file: Path) -> dict[str, Any]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is not a readable .npz file of plain arrays ({error})") from error
