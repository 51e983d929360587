"""Samples to predict, with or without labels: a folder or a file that the readers of datasets understand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyfed.data.array_files import decode_inputs, load_npz
from polyfed.data.arrays import Inputs, named_labels
from polyfed.data.catalogue import Format, KnownDataset
from polyfed.data.folders import find_pictures, split_folder
from polyfed.data.image_decoding import PictureStack
from polyfed.data.locations import ACCEPTED, local_place
from polyfed.data.tables import find_csv, find_label, read_csv_table, table_inputs
from polyfed.errors import InputError


@dataclass(frozen=True)
class SampleForm:
    """What a trained model expects: shape and kind of a sample, its columns in a table, and the names of classes."""

    shape: tuple[int, ...]
    kind: str  # 'picture', 'numbers' or 'tokens'
    classes: tuple[str, ...]
    features: tuple[str, ...]  # columns of a table; empty if they were not named
    format: Format


@dataclass(frozen=True)
class NewSamples:
    """Samples with a name each (a file, or the number of a row from 1), and their true classes if they are known."""

    inputs: Inputs
    names: tuple[str, ...]
    labels: tuple[str, ...] | None


def read_new_samples(path: Path, form: SampleForm) -> NewSamples:
    """Read pictures, a csv table, an .npz file or any other supported layout. Labels may be missing.

    If a folder has a training and a test split, the test split is read.
    """
    if not path.exists():
        raise InputError(f"there is no file or folder '{path}'")
    if form.kind == "picture":
        base = path if path.is_file() else split_folder(path, "test") or split_folder(path, "train") or path
        pictures = [path] if path.is_file() and path.suffix not in (".npz", ".csv") else find_pictures(base)
        if pictures:
            return _read_pictures(pictures, base, form)
    if file := _only_file(path, ".csv", form):
        return _read_table(file, form)
    if file := _only_file(path, ".npz", form):
        return _read_npz(file, form)
    return _read_dataset(path, form)


def _only_file(path: Path, suffix: str, form: SampleForm) -> Path | None:
    """Return the file itself, the file of the test split, or the only file with this ending."""
    if path.is_file():
        return path if path.suffix == suffix else None
    if suffix == ".csv":
        files = find_csv(path, _dataset(path, form)) or {}
        found = files.get("test") or files.get("train") or []
    else:
        found = sorted(path.glob("test.npz")) or sorted(path.glob("*.npz"))
    if len(found) > 1:
        raise InputError(f"{path} has {len(found)} files that end in {suffix}; name one of them, such as {found[0]}")
    return found[0] if found else None


def _read_pictures(pictures: Sequence[Path], base: Path, form: SampleForm) -> NewSamples:
    """Read pictures. They have labels if each is in a folder with the name of a class."""
    stack = PictureStack(len(pictures), channels=form.shape[0], resize=form.format.resize)
    for file in pictures:
        stack.add(file, str(file))
    folder = base.parent if base.is_file() else base
    names = [file.relative_to(folder) for file in pictures]
    labels = tuple(name.parts[0] for name in names)
    known = all(len(name.parts) > 1 for name in names) and set(labels) <= set(form.classes)
    return NewSamples(stack.pixels(), tuple(str(name) for name in names), labels if known else None)


def _read_table(file: Path, form: SampleForm) -> NewSamples:
    table = read_csv_table(file)
    if table.num_rows == 0:
        raise InputError(f"{file} has no rows; at least one sample is needed")
    label = find_label([name for name in table.schema.names if name not in form.features], form.format)
    inputs, _ = table_inputs(file, table, label, form.format, form.features)
    labels = None if label is None else _label_names(table.column(label).to_pylist(), f"{file}, '{label}'", form)
    return NewSamples(inputs, _row_numbers(len(inputs)), labels)


def _read_npz(file: Path, form: SampleForm) -> NewSamples:
    arrays = load_npz(file)
    x, y = next(
        ((x, y) for x, y in (("x_test", "y_test"), ("x", "y"), ("x_train", "y_train")) if x in arrays), ("", "")
    )
    if not x:
        raise InputError(f"{file} has no array 'x'; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    if form.kind == "tokens":
        inputs = arrays[x]
    else:
        inputs = decode_inputs(arrays[x], replace(_dataset(file, form), kind=form.kind), str(file))
    labels = _label_names(arrays[y], str(file), form) if y in arrays else None
    if labels is not None and len(labels) != len(inputs):
        raise InputError(f"{file}: found {len(inputs)} samples but {len(labels)} labels")
    return NewSamples(inputs, _row_numbers(len(inputs)), labels)


def _read_dataset(path: Path, form: SampleForm) -> NewSamples:
    """Read a folder with labels in any other layout of `data.root`."""
    place = local_place(_dataset(path, form), [path]) if path.is_dir() else None
    if place is None:
        raise InputError(
            f"no samples were found in '{path}'; accepted: pictures, a csv file, an .npz file, {ACCEPTED}"
        )
    data = place.decode()
    part = data.test or data.train
    names = _label_names([data.class_names[label] for label in part.labels], str(path), form)
    return NewSamples(part.inputs, _row_numbers(len(part.labels)), names)


def _dataset(path: Path, form: SampleForm) -> KnownDataset:
    channels = form.shape if form.kind == "picture" else None
    how = form.format
    return KnownDataset(path.name or "data", channels, 0, 0, 0, resize=how.resize, kind="any", format=how)


def _label_names(values: Sequence[object], where: str, form: SampleForm) -> tuple[str, ...]:
    """Return true classes by name. Numbers are positions in the model's classes unless they are names of classes."""
    labels, names = named_labels(np.asarray(values), where)
    texts = [names[label] if names is not None else str(label) for label in labels]
    if set(texts) <= set(form.classes):
        return tuple(texts)
    by_position = {str(position): name for position, name in enumerate(form.classes)}
    return tuple(by_position.get(text, text) for text in texts)


def _row_numbers(count: int) -> tuple[str, ...]:
    return tuple(str(row) for row in range(1, count + 1))
