"""Reader of parquet files in the image layout of Hugging Face datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Ints, Part
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.data.image_decoding import PictureStack
from polyfed.data.tables import class_names_of, read_parquet_tables
from polyfed.errors import InputError, nearest

PATTERNS = {"train": "train*.parquet", "valid": "val*.parquet", "test": "test*.parquet"}
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "fine_label", "labels")
_ROWS = 1024


def find_parquet(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Files by part, in the order of their names; also in a subfolder `data`, as on the hub."""
    for place in (folder, folder / "data"):
        found = {split: sorted(place.glob(pattern)) for split, pattern in PATTERNS.items()}
        found = {split: files for split, files in found.items() if files}
        if found:
            return found
    return None


def read_parquet(folder: Path, found: SplitFiles, known: KnownDataset) -> Splits:
    """Decode all rows. Class names come from the schema, if it has them. Files without pictures are tables."""
    from pyarrow import ArrowException

    if not set(IMAGE_NAMES) & set(
        _open(found["train" if "train" in found else next(iter(found))][0]).schema_arrow.names
    ):
        return read_parquet_tables(found, known)

    splits = Splits("parquet")
    for split, files in found.items():
        opened = [_open(file) for file in files]
        stack = PictureStack(
            sum(int(table.metadata.num_rows) for table in opened), channels=known.channels, resize=known.resize
        )
        labels: list[Ints] = []
        for file, table in zip(files, opened, strict=True):
            try:
                labels += _read_file(file, table, stack, splits)
            except (ArrowException, OSError) as error:
                raise InputError(f"{file} is damaged ({_short(error)}); a whole parquet file is needed") from error
        if not any(len(some) for some in labels):
            raise InputError(f"{files[0]} has no rows, but at least one picture is needed")
        splits.add(split, Part(stack.pixels(), np.concatenate(labels)), str(files[0]))
        splits.jpeg |= stack.jpeg
        splits.resized |= stack.resized
    return splits


def _open(file: Path) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(file)
    except (ArrowException, OSError) as error:
        raise InputError(f"{file} is not a whole parquet file ({_short(error)})") from error


def _read_file(file: Path, table: Any, stack: PictureStack, splits: Splits) -> list[Ints]:
    schema = table.schema_arrow
    image, label = _column(file, schema.names, IMAGE_NAMES), _column(file, schema.names, LABEL_NAMES)
    names = class_names_of(schema, label)
    if names is not None:
        if splits.class_names not in (None, names):
            raise InputError(f"{file} names other classes in its schema than the files before it; they must agree")
        splits.class_names = names
    labels: list[Ints] = []
    row = 0
    for batch in table.iter_batches(batch_size=_ROWS, columns=[image, label]):
        column = batch.column(batch.schema.get_field_index(label))
        if column.null_count or column.type not in _whole_number_types():
            raise InputError(
                f"{file}: column '{label}' has type {column.type} and {column.null_count} missing labels; "
                "whole numbers are needed"
            )
        labels.append(column.to_numpy(zero_copy_only=False).astype(np.int64))
        for entry in batch.column(batch.schema.get_field_index(image)).to_pylist():
            content = entry.get("bytes") if isinstance(entry, dict) else entry
            if not isinstance(content, bytes):
                raise InputError(
                    f"{file}, row {row}: no picture bytes in column '{image}'; a struct with `bytes` is needed"
                )
            stack.add(content, f"{file}, row {row}")
            row += 1
    return labels


def _whole_number_types() -> tuple[Any, ...]:
    import pyarrow as pa

    return (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


def _column(file: Path, present: list[str], wanted: tuple[str, ...]) -> str:
    for name in wanted:
        if name in present:
            return name
    raise InputError(f"{file} has no column '{wanted[0]}'; {nearest(wanted[0], present)}")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
