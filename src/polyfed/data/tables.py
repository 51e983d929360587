"""Readers of tables: csv files, and parquet files without pictures.

A table has one row per sample and a column of labels. The other columns are the sample: numbers, or one column of
text. Columns of text next to numbers do not enter the sample, but a partition can use them, for example the hospital.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Inputs, checked_part, joined_labels, named_labels
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import Format, KnownDataset
from polyfed.data.text_tokens import tokens, vocabulary_size
from polyfed.errors import InputError, nearest, require

LABEL_COLUMNS = ("label", "target", "class", "y", "labels", "fine_label", "diagnosis")
TEXT_COLUMNS = ("text", "sentence", "content")
_PATTERNS = {"train": "train*.csv", "valid": "val*.csv", "test": "test*.csv"}


def find_csv(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return train.csv, val.csv and test.csv, or the only csv file of the folder."""
    matches = {split: sorted(folder.glob(pattern)) for split, pattern in _PATTERNS.items()}
    split_files = {split: files for split, files in matches.items() if files}
    if split_files:
        return split_files
    single = sorted(folder.glob("*.csv"))
    return {"train": single} if len(single) == 1 else None


def read_csv(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Read all rows. Labels may be numbers or text."""
    tables = {split: [(file, read_csv_table(file)) for file in files] for split, files in split_files.items()}
    return _splits("csv files", tables, known)


def read_parquet_tables(split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Read parquet files that hold no pictures."""
    check_installed()
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    tables = {}
    for split, files in split_files.items():
        try:
            tables[split] = [(file, read_table(file)) for file in files]
        except (ArrowException, OSError) as error:
            raise InputError(f"{files[0]} is not a readable parquet file ({short_reason(error)})") from error
    return _splits("parquet", tables, known)


def check_installed() -> None:
    """Raise `InputError` if pyarrow is not installed."""
    require("pyarrow", extra="tables", sentence="csv and parquet files need")


def class_names_of(schema: Any, label: str) -> tuple[str, ...] | None:
    """Return the class names that Hugging Face wrote into a schema; None for plain files."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (TypeError, KeyError, ValueError):
        return None


def _splits(kind: str, tables: dict[str, list[tuple[Path, Any]]], known: KnownDataset) -> Splits:
    import pyarrow as pa

    splits = Splits(kind)
    merged = {}
    for split, pieces in tables.items():
        names = [table.schema.names for _, table in pieces]
        if any(other != names[0] for other in names):
            raise InputError(f"{pieces[0][0]} and {pieces[-1][0]} have different columns; they must agree")
        merged[split] = (pieces[0][0], pa.concat_tables([table for _, table in pieces], promote_options="default"))
    file, first = next(iter(merged.values()))
    label = _label_column(file, first.schema.names, known)
    # All splits use one mapping from text to class number, so that a class has the same number in every split.
    place = f"{file}, column '{label}'"
    all_labels = joined_labels([_values(table, label, where) for where, table in merged.values()], place)
    labels, class_names = named_labels(all_labels, place)
    splits.class_names = class_names_of(first.schema, label) or class_names
    start = 0
    for split, (where, table) in merged.items():
        split_labels = labels[start : start + table.num_rows]
        start += table.num_rows
        # the columns of the first file, by name: another order in another file must not change a sample
        extra = [name for name in _numeric(table, label) if splits.features and name not in splits.features]
        if extra:
            raise InputError(f"{where} has the column '{extra[0]}', which {file} does not have; they must agree")
        inputs, used = table_inputs(where, table, label, known.format, splits.features)
        if isinstance(used, str):
            splits.vocabulary = vocabulary_size(known.format)
        else:
            splits.features = used
        columns = {
            name: tuple(str(value) for value in table.column(name).to_pylist())
            for name in table.schema.names
            if name not in (label, used)
        }
        few = {name: values for name, values in columns.items() if len(set(values)) <= _MAX_DISTINCT_VALUES}
        splits.add(split, checked_part(inputs, split_labels, str(where), few), str(where))
    return splits


def table_inputs(
    file: Path, table: Any, label: str | None, how: Format, features: tuple[str, ...] = ()
) -> tuple[Inputs, str | tuple[str, ...]]:
    """Return the samples of a table, and the column of the text or the columns of numbers that they come from.

    `features` gives the columns of numbers, if they are known from another table.
    """
    import pyarrow as pa

    others = [name for name in table.schema.names if name != label]
    texts = [name for name in others if pa.types.is_string(table.schema.field(name).type)]
    numeric = _numeric(table, label)
    text = how.text or next((name for name in TEXT_COLUMNS if name in texts and not features), None)
    if text is not None:
        if text not in texts:
            raise InputError(
                f"data.text is '{text}', but {file} has no text column of that name; {nearest(text, texts)}"
            )
        return tokens(_complete(table, text, file), how), text
    missing = [name for name in features if name not in numeric]
    if missing:
        raise InputError(f"{file} has no column of numbers '{missing[0]}'; {nearest(missing[0], numeric)}")
    used = features or numeric
    for name in () if features else texts:
        _check_not_numbers(table.column(name).to_pylist(), f"{file}: column '{name}'")
    if not used:
        besides = f" besides '{label}'" if label else ""
        raise InputError(
            f"{file} has no column of numbers{besides}; its columns are {', '.join(others) or 'none'}. "
            "Encode categories as numbers, or set data.text to the column with the text."
        )
    return np.stack([_complete(table, name, file).astype(np.float32) for name in used], axis=1), used


def _check_not_numbers(values: Sequence[str | None], where: str) -> None:
    """Raise `InputError` for numbers with a few texts among them: the column would not be an input."""
    texts = [row for row, value in enumerate(values, 1) if value and not _NUMBER.fullmatch(value.strip())]
    if texts and len(texts) * 2 < len(values):
        raise InputError(
            f"{where} has numbers, but row {texts[0]} has '{values[texts[0] - 1]}'; write a number there or drop the "
            "row, or begin every value with a letter if the column is not an input"
        )


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_MAX_DISTINCT_VALUES = 10_000  # distinct values of a column that a partition may use


def find_label(columns: Iterable[str], how: Format) -> str | None:
    """Return the column of the labels, or None if there is none of the usual names."""
    names = (how.label,) if how.label is not None else LABEL_COLUMNS
    return next((name for name in names if name in columns), None)


def read_csv_table(file: Path) -> Any:
    """Return a csv file as an arrow table."""
    check_installed()
    from pyarrow import ArrowException
    from pyarrow.csv import read_csv as read_arrow

    try:
        return read_arrow(file)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a readable csv file ({short_reason(error)})") from error


def _label_column(file: Path, columns: list[str], known: KnownDataset) -> str:
    name, column = known.format.label, find_label(columns, known.format)
    if column is None and name is not None:
        raise InputError(f"data.label is '{name}', but {file} has no such column; {nearest(name, columns)}")
    if column is None:
        raise InputError(f"{file} has no column named label; set data.label to one of {', '.join(columns)}")
    return column


def _values(table: Any, name: str, file: Path) -> Any:
    if name not in table.schema.names:
        raise InputError(f"{file} has no column '{name}'; {nearest(name, table.schema.names)}")
    return _complete(table, name, file)


def _complete(table: Any, name: str, file: Path) -> Any:
    """Return a column as an array, after checking that no value is missing."""
    column = table.column(name)
    values = np.asarray(column.to_pylist(), dtype=object)
    missing = [k for k, value in enumerate(values) if value is None or (isinstance(value, float) and value != value)]
    if missing:
        raise InputError(
            f"{file}: column '{name}' has {len(missing)} missing values, the first in row {missing[0] + 1}; fill "
            "them in or drop the rows"
        )
    if _is_number(column.type):
        return np.asarray(values, dtype=np.float64)
    return values


def _numeric(table: Any, label: str | None) -> tuple[str, ...]:
    """Return the columns of numbers besides the label."""
    return tuple(name for name in table.schema.names if name != label and _is_number(table.schema.field(name).type))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def short_reason(error: Exception) -> str:
    """Return the start of an error message in one line."""
    return " ".join(str(error).split())[:200]
