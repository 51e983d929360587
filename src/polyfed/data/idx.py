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
    """Pairs of an image file and a label file, with the names the official files have."""
    found: SplitFiles = {}
    for split, prefix in _PREFIX.items():
        images, labels = (
            _file(folder, f"{prefix}-images", "idx3-ubyte"),
            _file(folder, f"{prefix}-labels", "idx1-ubyte"),
        )
        if images is not None and labels is not None:
            found[split] = [images, labels]
        elif images is not None or labels is not None:
            there, gone = (images, "labels-idx1") if images is not None else (labels, "images-idx3")
            raise InputError(
                f"{there} has no partner; {folder} also needs {prefix}-{gone}-ubyte or the same with .gz"
            )
    return found or None


def _file(folder: Path, stem: str, ending: str) -> Path | None:
    names = [f"{stem}{dash}{ending}{gz}" for dash in "-." for gz in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(folder: Path, found: SplitFiles, known: KnownDataset) -> Splits:
    """Decode the pairs."""
    splits = Splits("idx files")
    for split, (images_file, labels_file) in found.items():
        images = _array(images_file, _IMAGES_MAGIC, "images")
        labels = _array(labels_file, _LABELS_MAGIC, "labels")
        pair = checked_part(images[:, None], labels.astype(np.int64), f"{images_file} and {labels_file.name}")
        splits.add(split, Part(pair.inputs, pair.labels), str(labels_file))
    return splits


def _array(file: Path, magic: int, kind: str) -> Pixels:
    content = _content(file)
    found = int.from_bytes(content[:4], "big")
    if len(content) < 4 or found != magic:
        raise InputError(
            f"{file} is not an idx file of {kind}: it begins with {content[:4].hex() or 'nothing'}, not {magic:08x}"
        )
    axes = magic & 0xFF
    header = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) < header or len(content) != expected:
        raise InputError(f"{file} is damaged: it has {len(content)} bytes, but its header announces {expected}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _content(file: Path) -> bytes:
    try:
        if file.suffix != ".gz":
            return file.read_bytes()
        with gzip.open(file, "rb") as stream:
            return stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} cannot be read ({error}); a whole idx file is needed") from error
