"""Datasets of the Hugging Face library: from the hub by name, or an object the user has."""

from __future__ import annotations

import logging
import os
import socket
import urllib.parse
import urllib.request
from typing import Any

import numpy as np

from polyfed.data.arrays import Decoded, Part, as_inputs, as_labels, as_pixels, checked_part
from polyfed.data.assemble import Splits, assemble
from polyfed.data.catalogue import KnownDataset
from polyfed.data.image_decoding import PictureStack
from polyfed.data.parquet import IMAGE_NAMES, LABEL_NAMES
from polyfed.errors import InputError, nearest

_WORDS = {"train": "train", "test": "test", "valid": "valid", "validation": "valid", "val": "valid"}
_SECONDS_TO_ANSWER = 5.0
_log = logging.getLogger(__name__)


def decode_hub(known: KnownDataset, looked: str, accepted: str) -> Decoded:
    """Download a dataset of the catalogue; the other words are for the error: where else it was sought, and how."""
    try:
        _check_reachable()
        from datasets import load_dataset

        _log.warning("downloading dataset '%s' from the Hugging Face hub (%s)", known.name, known.hub)
        data = load_dataset(known.hub, known.hub_config)
    except Exception as error:  # whatever the network or the hub did, the user gets one sentence
        raise InputError(
            f"dataset '{known.name}' was not found: {looked}, and the Hugging Face hub ({known.hub}) gave nothing "
            f"({' '.join(str(error).split())[:200]}); set data.root to a folder with its files: {accepted}"
        ) from error
    splits = _splits(known.name, data, None, None, known)
    splits.kind = f"hub:{known.hub}"
    return assemble(known, splits)


def _check_reachable() -> None:
    """Fail at once where there is no network; the hub's own client would try again for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE") or urllib.request.getproxies():
        return
    host = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = host.port or (80 if host.scheme == "http" else 443)
    with socket.create_connection((host.hostname or "huggingface.co", port), timeout=_SECONDS_TO_ANSWER):
        pass


def decode_huggingface(name: str, data: Any, *, image: str | None, label: str | None) -> Decoded:
    """Decode a user's `Dataset` (all of it trains) or `DatasetDict` (train, test or else validation)."""
    splits = _splits(name, data, image, label, None)
    if splits.train is None:
        raise InputError(f"{name}: the splits are {', '.join(data) or 'none'}, but one named 'train' is needed")
    test = splits.test if splits.test is not None else splits.valid
    names = splits.class_names
    if names is None:
        highest = max(int(part.labels.max()) for part in (splits.train, test) if part is not None)
        names = tuple(str(number) for number in range(highest + 1))
    return Decoded(
        splits.train, test, names, "Hugging Face dataset (jpeg)" if splits.jpeg else "Hugging Face dataset"
    )


def _splits(name: str, data: Any, image: str | None, label: str | None, known: KnownDataset | None) -> Splits:
    given = dict(data) if isinstance(data, dict) else {"train": data}
    splits = Splits("hub")
    for split, rows in given.items():
        name_of_split = _WORDS.get(str(split))
        if name_of_split is not None and not (name_of_split == "test" and known is not None and known.valid_is_test):
            where = f"{name}, split {split}"
            if not hasattr(rows, "features") or not hasattr(rows, "__len__"):
                raise InputError(
                    f"{where} is a {type(rows).__name__}, but a Dataset of the datasets library is needed"
                )
            splits.add(name_of_split, _part(where, rows, image, label, known, splits), where)
    return splits


def _part(
    where: str, rows: Any, image: str | None, label: str | None, known: KnownDataset | None, splits: Splits
) -> Part:
    from datasets import ClassLabel, Image

    features = rows.features
    encoded = [column for column, kind in features.items() if isinstance(kind, Image)]
    named = [column for column, kind in features.items() if isinstance(kind, ClassLabel)]
    image = _column(where, list(features), image, [*encoded, *IMAGE_NAMES])
    label = _column(where, list(features), label, [*(c for c in LABEL_NAMES if c in named), *named, *LABEL_NAMES])
    if isinstance(features[label], ClassLabel):
        splits.class_names = tuple(features[label].names)
    labels = as_labels(np.asarray(rows.with_format("numpy")[label][:]), f"{where}, column '{label}'")
    # Parquet files that say nothing about themselves show an encoded picture as a plain struct with `bytes`.
    is_encoded = isinstance(features[image], Image) or (
        isinstance(features[image], dict) and "bytes" in features[image]
    )
    if not is_encoded:
        values, place = np.asarray(rows.with_format("numpy")[image][:]), f"{where}, column '{image}'"
        # lists of whole numbers in a column of pictures are pixels
        inputs = as_pixels(values, place) if values.dtype.kind in "iu" else as_inputs(values, place)
        return checked_part(inputs, labels, where)
    stack = PictureStack(
        len(rows), channels=None if known is None else known.channels, resize=None if known is None else known.resize
    )
    for number, row in enumerate(rows.select_columns([image]).cast_column(image, Image(decode=False))):
        content = row[image]["bytes"]
        if content is None:
            raise InputError(f"{where}, row {number}: the picture is a link to a file; embed the bytes first")
        stack.add(content, f"{where}, row {number}")
    if len(labels) == 0:
        raise InputError(f"{where} has no rows, but at least one picture is needed")
    splits.jpeg |= stack.jpeg
    splits.resized |= stack.resized
    return Part(stack.pixels(), labels)


def _column(where: str, present: list[str], wanted: str | None, usual: list[str]) -> str:
    if wanted is not None:
        if wanted not in present:
            raise InputError(f"{where} has no column '{wanted}'; {nearest(wanted, present)}")
        return wanted
    for column in usual:
        if column in present:
            return column
    raise InputError(f"{where} has no column like '{usual[-1]}'; name it, the columns are {', '.join(present)}")
