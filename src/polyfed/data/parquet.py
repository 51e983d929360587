"""Reader of parquet files in the image layout of Hugging Face datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Ints, Part
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.data.image_decoding import PictureStack
from polyfed.data.tables import check_installed, class_names_of, read_parquet_tables, short_reason
from polyfed.errors import InputError, nearest

PATTERNS = {"train": "train*.parquet", "valid": "val*.parquet", "test": "test*.parquet"}
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "fine_label", "labels")
_BATCH_SIZE = 1024


def find_parquet(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the files of each split, sorted by name, from the folder or its subfolder `data` as on the hub."""
    for base in (folder, folder / "data"):
        matches = {split: sorted(base.glob(pattern)) for split, pattern in PATTERNS.items()}
        split_files = {split: files for split, files in matches.items() if files}
        if split_files:
            return split_files
    return None


def read_parquet(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Decode all rows. Take class names from the schema if it has them. Read files without pictures as tables."""
    check_installed()
    from pyarrow import ArrowException

    first_file = split_files["train" if "train" in split_files else next(iter(split_files))][0]
    if not set(IMAGE_NAMES) & set(_open(first_file).schema_arrow.names):
        return read_parquet_tables(split_files, known)

    splits = Splits("parquet")
    for split, files in split_files.items():
        opened = [_open(file) for file in files]
        stack = PictureStack(
            sum(int(table.metadata.num_rows) for table in opened), channels=known.channels, resize=known.resize
        )
        labels: list[Ints] = []
        for file, table in zip(files, opened, strict=True):
            try:
                labels += _read_file(file, table, stack, splits)
            except (ArrowException, OSError) as error:
                raise InputError(
                    f"{file} is damaged ({short_reason(error)}); replace it with a complete parquet file"
                ) from error
        if not any(len(batch) for batch in labels):
            raise InputError(f"{files[0]} has no rows; at least one picture is needed")
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
        raise InputError(f"{file} is not a complete parquet file ({short_reason(error)})") from error


def _read_file(file: Path, table: Any, stack: PictureStack, splits: Splits) -> list[Ints]:
    schema = table.schema_arrow
    image, label = _select_column(file, schema.names, IMAGE_NAMES), _select_column(file, schema.names, LABEL_NAMES)
    names = class_names_of(schema, label)
    if names is not None:
        if splits.class_names not in (None, names):
            raise InputError(f"{file} has other class names in its schema than the files before it; they must agree")
        splits.class_names = names
    labels: list[Ints] = []
    row = 0
    for batch in table.iter_batches(batch_size=_BATCH_SIZE, columns=[image, label]):
        column = batch.column(batch.schema.get_field_index(label))
        if column.null_count or column.type not in _integer_types():
            raise InputError(
                f"{file}: column '{label}' has type {column.type} and {column.null_count} missing labels; "
                "expected integers"
            )
        labels.append(column.to_numpy(zero_copy_only=False).astype(np.int64))
        for entry in batch.column(batch.schema.get_field_index(image)).to_pylist():
            content = entry.get("bytes") if isinstance(entry, dict) else entry
            if not isinstance(content, bytes):
                raise InputError(
                    f"{file}, row {row}: no picture bytes in column '{image}'; expected a struct with `bytes`"
                )
            stack.add(content, f"{file}, row {row}")
            row += 1
    return labels


def _integer_types() -> tuple[Any, ...]:
    import pyarrow as pa

    return (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


def _select_column(file: Path, columns: list[str], names: tuple[str, ...]) -> str:
    """Return the first of the names that is a column."""
    for name in names:
        if name in columns:
            return name
    raise InputError(f"{file} has no column '{names[0]}'; {nearest(names[0], columns)}")
