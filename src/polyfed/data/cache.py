"""The cache of decoded datasets: one folder each, written atomically and opened by memory-mapping."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.arrays import Decoded, Ints, Part, check_decoded
from polyfed.errors import InputError

FORMAT = 2
META = "dataset.json"
_BLOCK = 1 << 20
_SECONDS_PER_DAY = 86_400


def cache_root(cache: Path | None) -> Path:
    """Return the folder of decoded datasets: the argument, $POLYFED_CACHE, or ~/.cache/polyfed."""
    if cache is not None:
        return Path(cache)
    named = os.environ.get("POLYFED_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "polyfed"


def files_digest(folder: Path, files: Iterable[Path]) -> str:
    """Return a digest of files by their path in the folder, size and content. A changed file is another dataset."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            digest.update(f"{file.relative_to(folder).as_posix()}:{file.stat().st_size};".encode())
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            raise InputError(f"cannot read {file} ({error.strerror})") from error
    return digest.hexdigest()


def decoded_digest(data: Decoded) -> str:
    """Return a digest of a dataset that exists only in memory."""
    digest = hashlib.blake2b(repr((data.class_names, data.source, data.vocabulary)).encode(), digest_size=16)
    for part in (data.train, data.test):
        if part is not None:
            digest.update(repr((part.inputs.dtype.str, part.inputs.shape, sorted(part.columns.items()))).encode())
            digest.update(np.ascontiguousarray(part.inputs).data)
            digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()


def folder_for(name: str, digest: str, cache: Path | None) -> Path:
    """Return the cache folder of a dataset with this content."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "dataset"
    key = hashlib.blake2b(f"{FORMAT}:{name}:{digest}".encode(), digest_size=8).hexdigest()
    return cache_root(cache) / f"{stem}-{key}"


def _checksum(meta: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_meta(folder: Path) -> dict[str, Any] | None:
    """Return the metadata of a cache folder, or None if its checksum or the size of a file is wrong."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        checksum = meta.pop("checksum")
        sizes = meta["files"]
        complete = (
            checksum == _checksum(meta)
            and meta["format"] == FORMAT
            and all((folder / file).stat().st_size == size for file, size in sizes.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return meta if complete else None


def ensure(folder: Path, name: str, decode: Callable[[], Decoded]) -> Path:
    """Return the folder; decode the dataset into it first if it is missing or damaged."""
    if read_meta(folder) is None:
        _write(folder, name, check_decoded(decode(), name))
    return folder


def _write(folder: Path, name: str, data: Decoded) -> None:
    with _explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(work / "new", name, data)
            _rename_into_place(work / "new", folder, work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of killed processes. Decoding never takes a day."""
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _SECONDS_PER_DAY:
                shutil.rmtree(leftover, ignore_errors=True)


def _fill(folder: Path, name: str, data: Decoded) -> None:
    folder.mkdir()
    sizes: dict[str, int] = {}
    columns: dict[str, list[str]] = {}  # by split and name, the distinct values in the order of their codes
    for split, part in (("train", data.train), ("test", data.test)):
        if part is None:
            continue
        codes, values = _column_codes(part)
        columns |= {f"{split}/{name}": names for name, names in values.items()}
        for kind, array in (("inputs", part.inputs), ("labels", part.labels), *codes.items()):
            file = folder / f"{split}_{kind}.npy"
            with file.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
                _flush(stream.fileno())
            sizes[file.name] = file.stat().st_size
    meta: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "classes": len(data.class_names),
        "shape": list(data.train.inputs.shape[1:]),
        "vocabulary": data.vocabulary,
        "columns": columns,
        "features": list(data.features),
        "class_names": list(data.class_names),
        "source": data.source,
        "has_test": data.test is not None,
        "files": sizes,
    }
    meta["checksum"] = _checksum(meta)
    with (folder / META).open("w", encoding="utf-8") as text:
        json.dump(meta, text, indent=1)
        text.flush()
        _flush(text.fileno())


def _column_codes(part: Part) -> tuple[dict[str, Ints], dict[str, list[str]]]:
    """Return each column as numbers, by the name of its file, and the values that the numbers stand for."""
    codes, values = {}, {}
    for position, (name, column) in enumerate(part.columns.items()):
        distinct, numbers = np.unique(np.asarray(column, dtype=str), return_inverse=True)
        codes[f"column{position}"] = numbers.astype(np.int64)
        values[name] = distinct.tolist()
    return codes, values


def _flush(descriptor: int) -> None:
    # Before the rename: after a power cut the folder is complete or absent, never full of zeros.
    os.fsync(descriptor)


def _rename_into_place(new: Path, folder: Path, aside: Path) -> None:
    """Rename the finished folder into place. A damaged folder there is moved aside, a complete one stays."""
    for _ in range(3):
        try:
            new.rename(folder)
            return
        except OSError:
            if read_meta(folder) is not None:
                return  # another process was faster; its content is the same
            with contextlib.suppress(FileNotFoundError):
                folder.rename(aside)
    raise OSError(f"{folder} could not be replaced")


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write the dataset cache {folder.parent} ({error.strerror or error}); "
            "set POLYFED_CACHE to a writable folder with enough space"
        ) from error
