"""The cache of decoded datasets: one folder each, written whole or not at all, opened by memory-mapping."""

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

from polyfed.data.arrays import Decoded, check_decoded
from polyfed.errors import InputError

FORMAT = 1
META = "dataset.json"
_BLOCK = 1 << 20
_SECONDS_OF_A_DAY = 86_400


def cache_root(cache: Path | None) -> Path:
    """Where decoded datasets live: the argument, else $POLYFED_CACHE, else ~/.cache/polyfed."""
    if cache is not None:
        return Path(cache)
    named = os.environ.get("POLYFED_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "polyfed"


def files_digest(folder: Path, files: Iterable[Path]) -> str:
    """A digest of files by place in the folder, size and content: a changed file is another dataset."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            digest.update(f"{file.relative_to(folder).as_posix()}:{file.stat().st_size};".encode())
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            raise InputError(f"{file} could not be read ({error.strerror}); it must be a readable file") from error
    return digest.hexdigest()


def decoded_digest(data: Decoded) -> str:
    """A digest of a dataset that exists in memory only."""
    digest = hashlib.blake2b(repr((data.class_names, data.source)).encode(), digest_size=16)
    for part in (data.train, data.test):
        if part is not None:
            digest.update(repr(part.images.shape).encode())
            digest.update(np.ascontiguousarray(part.images).data)
            digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()


def folder_for(name: str, digest: str, cache: Path | None) -> Path:
    """The folder of one dataset with one content."""
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "dataset"
    key = hashlib.blake2b(f"{FORMAT}:{name}:{digest}".encode(), digest_size=8).hexdigest()
    return cache_root(cache) / f"{word}-{key}"


def _seal(meta: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What the folder says about itself; None unless the description is sealed and every file has its size."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        seal = meta.pop("checksum")
        sizes = meta["files"]
        whole = (
            seal == _seal(meta)
            and meta["format"] == FORMAT
            and all((folder / file).stat().st_size == size for file, size in sizes.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return meta if whole else None


def ensure(folder: Path, name: str, decode: Callable[[], Decoded]) -> Path:
    """The folder, whole: as it is, or decoded anew if it is missing or damaged."""
    if read_meta(folder) is None:
        _write(folder, name, check_decoded(decode(), name))
    return folder


def _write(folder: Path, name: str, data: Decoded) -> None:
    with _refused_politely(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(work / "new", name, data)
            _put_in_place(work / "new", folder, work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left of this dataset; a day is longer than any decoding takes."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _SECONDS_OF_A_DAY:
                shutil.rmtree(left, ignore_errors=True)


def _fill(folder: Path, name: str, data: Decoded) -> None:
    folder.mkdir()
    sizes: dict[str, int] = {}
    for word, part in (("train", data.train), ("test", data.test)):
        if part is None:
            continue
        for kind, array in (("images", part.images), ("labels", part.labels)):
            file = folder / f"{word}_{kind}.npy"
            with file.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
                _flush(stream.fileno())
            sizes[file.name] = file.stat().st_size
    meta: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "classes": len(data.class_names),
        "shape": list(data.train.images.shape[1:]),
        "class_names": list(data.class_names),
        "source": data.source,
        "has_test": data.test is not None,
        "files": sizes,
    }
    meta["checksum"] = _seal(meta)
    with (folder / META).open("w", encoding="utf-8") as text:
        json.dump(meta, text, indent=1)
        text.flush()
        _flush(text.fileno())


def _flush(descriptor: int) -> None:
    # Before the rename, so that after a power cut the folder is whole or absent, never full of zeros.
    os.fsync(descriptor)


def _put_in_place(new: Path, folder: Path, aside: Path) -> None:
    """Rename the finished folder to its place; a damaged one there steps aside, a whole one stays."""
    for _ in range(3):
        try:
            new.rename(folder)
            return
        except OSError:
            if read_meta(folder) is not None:
                return  # another process was faster, and equal content is equal work
            with contextlib.suppress(FileNotFoundError):
                folder.rename(aside)
    raise OSError(f"{folder} could not be replaced")


@contextlib.contextmanager
def _refused_politely(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the dataset cache {folder.parent} could not be written ({error.strerror or error}); "
            "set POLYFED_CACHE to a writable folder with enough space"
        ) from error
