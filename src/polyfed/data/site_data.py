"""A site's own data: a folder in any layout that is read, brought to the shape and classes that all agreed on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from polyfed.data import cache as cache_room
from polyfed.data.arrays import Decoded, Part, check_labels, size_text
from polyfed.data.catalogue import Format, KnownDataset
from polyfed.data.dataset import Dataset, open_cached
from polyfed.data.locations import ACCEPTED, local_place
from polyfed.errors import InputError, nearest


def load_own(
    folder: Path, *, shape: tuple[int, ...], class_names: tuple[str, ...], cache: Path | None = None
) -> Dataset:
    """Open the data of a site. The site may lack classes; classes are matched by name, or by number without names.

    Pictures of another size are cropped to the central square and scaled; other samples must have the agreed shape.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}' with data")
    side = shape[1] if len(shape) == 3 else None
    pictures = Format(resize=side)
    known = KnownDataset(folder.name or "data", shape, 0, 0, 0, resize=side, kind="any", format=pictures)
    place = local_place(known, [folder])
    if place is None:
        raise InputError(f"no data was found in '{folder}'; accepted there: {ACCEPTED}")
    agreed = hashlib.blake2b(repr((shape, class_names)).encode(), digest_size=4).hexdigest()
    target = cache_room.folder_for(known.name, f"{place.digest()}-{agreed}", cache)
    return open_cached(
        cache_room.ensure(target, known.name, lambda: _matched(place.decode(), folder, shape, class_names))
    )


def _matched(data: Decoded, folder: Path, shape: tuple[int, ...], class_names: tuple[str, ...]) -> Decoded:
    """Return the same samples with labels in the agreed order of classes."""
    found = tuple(int(extent) for extent in data.train.inputs.shape[1:])
    if found != shape:
        raise InputError(
            f"the samples in '{folder}' are {size_text(found)}, but this federation has agreed on {size_text(shape)}"
        )
    numbered = data.class_names == tuple(str(k) for k in range(len(data.class_names)))
    if numbered and not set(data.class_names) <= set(class_names):
        places = np.arange(len(data.class_names))  # labels without names: their numbers are the classes
        for part in (data.train, *(() if data.test is None else (data.test,))):
            check_labels(part.labels, len(class_names), str(folder))
    else:
        for name in data.class_names:
            if name not in class_names:
                raise InputError(f"'{folder}' has the class '{name}', which is unknown: {nearest(name, class_names)}")
        places = np.array([class_names.index(name) for name in data.class_names], dtype=np.int64)

    def moved(part: Part) -> Part:
        return Part(part.inputs, places[part.labels].astype(np.int64))

    test = None if data.test is None else moved(data.test)
    return Decoded(moved(data.train), test, class_names, data.source)
