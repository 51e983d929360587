"""Hugging Face datasets: download from the hub by name, or convert a `Dataset` object of the user."""

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
from polyfed.errors import InputError, nearest, require

_SPLIT_NAMES = {"train": "train", "test": "test", "valid": "valid", "validation": "valid", "val": "valid"}
_TIMEOUT_SECONDS = 5.0
_log = logging.getLogger(__name__)


def decode_hub(known: KnownDataset, searched: str, accepted: str) -> Decoded:
    """Download and decode a dataset of the catalogue.

    The error message names the places that were `searched` before, and the `accepted` file layouts.
    """
    try:
        require("datasets", extra="hub", sentence="downloads need")
        _check_reachable()
        from datasets import load_dataset

        _log.warning("downloading dataset '%s' from the Hugging Face hub (%s)", known.name, known.hub)
        data = load_dataset(known.hub, known.hub_config)
    except Exception as error:  # the network, the hub and its client raise many types
        raise InputError(
            f"dataset '{known.name}' was not found: {searched}, and the download of {known.hub} from the Hugging "
            f"Face hub failed ({' '.join(str(error).split())[:200]}); set data.root to a folder with its files: "
            f"{accepted}"
        ) from error
    splits = _decode_splits(known.name, data, None, None, known)
    splits.kind = f"hub:{known.hub}"
    return assemble(known, splits)


def _check_reachable() -> None:
    """Raise `OSError` at once if there is no network. The client of the hub would retry for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE") or urllib.request.getproxies():
        return
    host = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = host.port or (80 if host.scheme == "http" else 443)
    with socket.create_connection((host.hostname or "huggingface.co", port), timeout=_TIMEOUT_SECONDS):
        pass


def decode_huggingface(name: str, data: Any, *, image: str | None, label: str | None) -> Decoded:
    """Decode a `Dataset`, which becomes the training split, or a `DatasetDict`.

    Use the validation split as the test split if there is no test split.
    """
    splits = _decode_splits(name, data, image, label, None)
    if splits.train is None:
        raise InputError(f"{name}: the splits are {', '.join(data) or 'none'}, but a split 'train' is needed")
    test = splits.test if splits.test is not None else splits.valid
    names = splits.class_names
    if names is None:
        highest = max(int(part.labels.max()) for part in (splits.train, test) if part is not None)
        names = tuple(str(number) for number in range(highest + 1))
    return Decoded(
        splits.train, test, names, "Hugging Face dataset (jpeg)" if splits.jpeg else "Hugging Face dataset"
    )


def _decode_splits(name: str, data: Any, image: str | None, label: str | None, known: KnownDataset | None) -> Splits:
    rows_by_split = dict(data) if isinstance(data, dict) else {"train": data}
    splits = Splits("hub")
    for split, rows in rows_by_split.items():
        split_name = _SPLIT_NAMES.get(str(split))
        if split_name is not None and not (split_name == "test" and known is not None and known.valid_is_test):
            where = f"{name}, split {split}"
            if not hasattr(rows, "features") or not hasattr(rows, "__len__"):
                raise InputError(
                    f"{where} is a {type(rows).__name__}, but a Dataset of the datasets library is needed"
                )
            splits.add(split_name, _decode_split(where, rows, image, label, known, splits), where)
    return splits


def _decode_split(
    where: str, rows: Any, image: str | None, label: str | None, known: KnownDataset | None, splits: Splits
) -> Part:
    from datasets import ClassLabel, Image

    features = rows.features
    image_columns = [column for column, feature in features.items() if isinstance(feature, Image)]
    class_columns = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
    image = _select_column(where, list(features), image, [*image_columns, *IMAGE_NAMES])
    usual_labels = [*(c for c in LABEL_NAMES if c in class_columns), *class_columns, *LABEL_NAMES]
    label = _select_column(where, list(features), label, usual_labels)
    if isinstance(features[label], ClassLabel):
        splits.class_names = tuple(features[label].names)
    labels = as_labels(np.asarray(rows.with_format("numpy")[label][:]), f"{where}, column '{label}'")
    # In parquet files without Hugging Face metadata, an encoded picture is a plain struct with `bytes`.
    is_encoded = isinstance(features[image], Image) or (
        isinstance(features[image], dict) and "bytes" in features[image]
    )
    if not is_encoded:
        values, place = np.asarray(rows.with_format("numpy")[image][:]), f"{where}, column '{image}'"
        # Integers are pixels; other numbers are inputs of any shape.
        inputs = as_pixels(values, place) if values.dtype.kind in "iu" else as_inputs(values, place)
        return checked_part(inputs, labels, where)
    stack = PictureStack(
        len(rows), channels=None if known is None else known.channels, resize=None if known is None else known.resize
    )
    for number, row in enumerate(rows.select_columns([image]).cast_column(image, Image(decode=False))):
        content = row[image]["bytes"]
        if content is None:
            raise InputError(
                f"{where}, row {number}: the picture is a path instead of encoded bytes; embed the bytes first"
            )
        stack.add(content, f"{where}, row {number}")
    if len(labels) == 0:
        raise InputError(f"{where} has no rows; at least one picture is needed")
    splits.jpeg |= stack.jpeg
    splits.resized |= stack.resized
    return Part(stack.pixels(), labels)


def _select_column(where: str, columns: list[str], name: str | None, usual: list[str]) -> str:
    """Return the column of that name, or the first of the usual ones that exists if no name is given."""
    if name is not None:
        if name not in columns:
            raise InputError(f"{where} has no column '{name}'; {nearest(name, columns)}")
        return name
    for column in usual:
        if column in columns:
            return column
    raise InputError(
        f"{where} has no column like '{usual[-1]}'; pass the name of the column, one of {', '.join(columns)}"
    )
