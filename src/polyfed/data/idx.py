"""Reader of idx files, plain or gzipped: the format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from polyfed.data.arrays import Part, Pixels, checked_part
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.errors import InputError

_PREFIX = {"train": "train", "test": "t10k"}
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801


def find_idx(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the image file and the label file of each split, by their official names."""
    files: SplitFiles = {}
    for split, prefix in _PREFIX.items():
        images, labels = (
            _find_file(folder, f"{prefix}-images", "idx3-ubyte"),
            _find_file(folder, f"{prefix}-labels", "idx1-ubyte"),
        )
        if images is not None and labels is not None:
            files[split] = [images, labels]
        elif images is not None or labels is not None:
            present, missing = (images, "labels-idx1") if images is not None else (labels, "images-idx3")
            raise InputError(
                f"{present} alone is not enough; {folder} also needs {prefix}-{missing}-ubyte, plain or as .gz"
            )
    return files or None


def _find_file(folder: Path, stem: str, ending: str) -> Path | None:
    names = [f"{stem}{dash}{ending}{gz}" for dash in "-." for gz in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(folder: Path, files: SplitFiles, known: KnownDataset) -> Splits:
    """Decode the image and label files."""
    splits = Splits("idx files")
    for split, (images_file, labels_file) in files.items():
        images = _read_array(images_file, _IMAGES_MAGIC, "images")
        labels = _read_array(labels_file, _LABELS_MAGIC, "labels")
        pair = checked_part(images[:, None], labels.astype(np.int64), f"{images_file} and {labels_file.name}")
        splits.add(split, Part(pair.inputs, pair.labels), str(labels_file))
    return splits


def _read_array(file: Path, magic: int, kind: str) -> Pixels:
    content = _read_bytes(file)
    if len(content) < 4 or int.from_bytes(content[:4], "big") != magic:
        raise InputError(
            f"{file} is not an idx file of {kind}: it begins with {content[:4].hex() or 'nothing'}; "
            f"expected {magic:08x}"
        )
    axes = magic & 0xFF
    header = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) < header or len(content) != expected:
        raise InputError(f"{file} is damaged: it has {len(content)} bytes, but its header says {expected}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _read_bytes(file: Path) -> bytes:
    try:
        if file.suffix != ".gz":
            return file.read_bytes()
        with gzip.open(file, "rb") as stream:
            return stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} cannot be read ({error}); the file may be incomplete") from error
