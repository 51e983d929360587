"""Readers of whole arrays in one file: SVHN's `.mat`, CIFAR's binary version and `.npz`.

The `.npz` layout is either one file `<name>.npz` with x_train, y_train, x_test, y_test, or `train.npz` and `test.npz`
(`valid.npz`) with x and y. Pictures are (n, H, W), (n, C, H, W) or (n, H, W, C), uint8 or floats in [0, 1].
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Part, as_labels, as_pixels, checked_part, joined
from polyfed.data.assemble import Found, Parts
from polyfed.data.catalogue import Known
from polyfed.errors import InputError

_CIFAR_PIXELS = 3 * 32 * 32


def _present(folder: Path, names: dict[str, str]) -> Found | None:
    found = {word: sorted(folder.glob(pattern)) for word, pattern in names.items()}
    return {word: files for word, files in found.items() if files} or None


def find_mat(folder: Path, known: Known) -> Found | None:
    """SVHN's cropped digits; the part `extra` is not used."""
    if known.name != "svhn":
        return None
    return _present(folder, {"train": "train_32x32.mat", "test": "test_32x32.mat"})


def read_mat(folder: Path, found: Found, known: Known) -> Parts:
    """X is (H, W, C, n); y is a column in which 10 stands for the digit 0."""
    parts = Parts("mat files")
    for word, (file,) in found.items():
        content = _mat_content(file)
        images = np.asarray(content["X"])
        if images.ndim != 4:
            raise InputError(f"{file}: X has shape {images.shape}, but (H, W, C, n) is needed")
        labels = as_labels(content["y"], str(file))
        labels = np.where(labels == 10, 0, labels)
        parts.put(
            word, checked_part(as_pixels(images.transpose(3, 2, 0, 1), str(file)), labels, str(file)), str(file)
        )
    return parts


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


def find_cifar(folder: Path, known: Known) -> Found | None:
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


def read_cifar(folder: Path, found: Found, known: Known) -> Parts:
    """Rows of one label byte (CIFAR-100: coarse, then fine) and 3072 bytes of pixels."""
    label_bytes = 1 if known.name == "cifar10" else 2
    parts = Parts("binary files")
    for word, files in found.items():
        pieces = []
        for file in files:
            content = np.fromfile(file, dtype=np.uint8)
            row = label_bytes + _CIFAR_PIXELS
            if len(content) == 0 or len(content) % row:
                raise InputError(f"{file} is damaged: it has {len(content)} bytes, which is no multiple of {row}")
            rows = content.reshape(-1, row)
            images = np.ascontiguousarray(rows[:, label_bytes:]).reshape(-1, 3, 32, 32)
            pieces.append(Part(images, rows[:, label_bytes - 1].astype(np.int64)))
        parts.put(word, joined(pieces), str(files[0]))
    parts.class_names = _cifar_names(folder, known)
    return parts


def _cifar_names(folder: Path, known: Known) -> tuple[str, ...] | None:
    file = folder / ("batches.meta.txt" if known.name == "cifar10" else "fine_label_names.txt")
    if not file.is_file():
        return None
    names = tuple(file.read_text(encoding="utf-8").split())
    return names if len(names) == known.classes else None


def find_npz(folder: Path, known: Known) -> Found | None:
    """One file with the dataset's name, or one per part."""
    whole = folder / f"{known.name}.npz"
    if whole.is_file():
        return {"train": [whole]}
    return _present(folder, {"train": "train.npz", "valid": "valid.npz", "test": "test.npz"})


def read_npz(folder: Path, found: Found, known: Known) -> Parts:
    """Either layout of the module's description."""
    parts = Parts("npz files")
    for word, (file,) in found.items():
        arrays = _npz_arrays(file)
        if file.name == f"{known.name}.npz":
            words = {"train": "_train", "test": "_test"} if "x_test" in arrays else {"train": "_train"}
        else:
            words = {word: ""}
        for part, ending in words.items():
            for name in (f"x{ending}", f"y{ending}"):
                if name not in arrays:
                    raise InputError(
                        f"{file} has no array '{name}'; it holds {', '.join(sorted(arrays)) or 'nothing'}"
                    )
            images, labels = as_pixels(arrays[f"x{ending}"], str(file)), as_labels(arrays[f"y{ending}"], str(file))
            parts.put(part, checked_part(images, labels, str(file)), str(file))
    return parts


def _npz_arrays(file: Path) -> dict[str, Any]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is not a readable .npz file of plain arrays ({error})") from error
