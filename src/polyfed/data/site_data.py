"""Local data of a site: read a folder in any supported layout and match the federation's shape and classes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyfed.data import cache as dataset_cache
from polyfed.data.arrays import Decoded, Part, check_labels, size_text
from polyfed.data.catalogue import Format, KnownDataset
from polyfed.data.dataset import Dataset, open_cached
from polyfed.data.locations import ACCEPTED, local_place
from polyfed.errors import InputError, nearest


def load_own(
    folder: Path, *, shape: tuple[int, ...], class_names: tuple[str, ...], cache: Path | None = None
) -> Dataset:
    """Open the data of a site. Match classes by name, or by number if the data has no class names.

    The data need not contain all classes of the federation. Pictures of another size are cropped to the central
    square and resized. Other samples must have the given shape.
    """
    if not folder.is_dir():
        raise InputError(f"the data folder '{folder}' does not exist")
    side = shape[1] if len(shape) == 3 else None
    known = KnownDataset(folder.name or "data", shape, 0, 0, 0, resize=side, kind="any", format=Format(resize=side))
    location = local_place(known, [folder])
    if location is None:
        raise InputError(f"no data was found in '{folder}'; accepted there: {ACCEPTED}")
    digest = location.digest()
    schema = hashlib.blake2b(repr((shape, class_names)).encode(), digest_size=4).hexdigest()
    target = dataset_cache.folder_for(known.name, f"{digest}-{schema}", cache)
    opened = open_cached(
        dataset_cache.ensure(
            target, known.name, lambda: _match_classes(location.decode(), folder, shape, class_names)
        )
    )
    return replace(opened, digest=digest)


def _match_classes(data: Decoded, folder: Path, shape: tuple[int, ...], class_names: tuple[str, ...]) -> Decoded:
    """Return the data with labels that index the class names of the federation."""
    own_shape = tuple(int(extent) for extent in data.train.inputs.shape[1:])
    if own_shape != shape:
        raise InputError(
            f"the samples in '{folder}' have shape {size_text(own_shape)}, but this federation uses "
            f"{size_text(shape)}"
        )
    numbered = data.class_names == tuple(str(k) for k in range(len(data.class_names)))
    if numbered and not set(data.class_names) <= set(class_names):
        new_labels = np.arange(len(data.class_names))  # without class names, the labels stay as they are
        for part in (data.train, *(() if data.test is None else (data.test,))):
            check_labels(part.labels, len(class_names), str(folder))
    else:
        for name in data.class_names:
            if name not in class_names:
                raise InputError(
                    f"'{folder}' has the class '{name}', which this federation does not have; "
                    f"{nearest(name, class_names)}"
                )
        new_labels = np.array([class_names.index(name) for name in data.class_names], dtype=np.int64)

    def relabel(part: Part) -> Part:
        return Part(part.inputs, new_labels[part.labels].astype(np.int64))

    test = None if data.test is None else relabel(data.test)
    return Decoded(relabel(data.train), test, class_names, data.source, data.vocabulary, data.features)
