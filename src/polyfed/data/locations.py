"""Where a dataset of the catalogue is: in a folder, in an installed package or on the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polyfed.data.array_files import find_cifar, find_mat, find_npz, read_cifar, read_mat, read_npz
from polyfed.data.arrays import Decoded
from polyfed.data.assemble import Found, Parts, assemble
from polyfed.data.cache import files_digest, folder_for, read_meta
from polyfed.data.catalogue import Known
from polyfed.data.digits import digits_file, read_digits
from polyfed.data.folders import find_folders, read_folders
from polyfed.data.idx import find_idx, read_idx
from polyfed.data.parquet import find_parquet, read_parquet
from polyfed.errors import InputError


@dataclass(frozen=True)
class Place:
    """A source that was found: how to tell its content apart from others, and how to decode it."""

    digest: Callable[[], str]
    decode: Callable[[], Decoded]


@dataclass(frozen=True)
class _Layout:
    find: Callable[[Path, Known], Found | None]
    read: Callable[[Path, Found, Known], Parts]


_LAYOUTS = (
    _Layout(find_idx, read_idx),
    _Layout(find_parquet, read_parquet),
    _Layout(find_mat, read_mat),
    _Layout(find_cifar, read_cifar),
    _Layout(find_npz, read_npz),
    _Layout(find_folders, read_folders),
)
ACCEPTED = (
    "idx files (train-images-idx3-ubyte[.gz], ...), parquet (train*.parquet, test*.parquet), SVHN's train_32x32.mat, "
    "CIFAR's .bin files, .npz (train.npz and test.npz with x and y, or one with x_train, y_train, ...) "
    "or image folders (train/<class>/*, test/<class>/*)"
)


def locate(known: Known, root: Path | None) -> Place:
    """The first place that has the dataset; looks at names of files only, decodes nothing."""
    if known.name == "digits":
        return _digits_place()
    if root is not None:
        if not root.is_dir():
            raise InputError(f"data.root is '{root}', but there is no such folder; it must hold '{known.name}'")
        place = local_place(known, _candidates(known, root))
        if place is None:
            raise InputError(
                f"dataset '{known.name}' was not found in data.root '{root}' nor in its subfolder '{known.name}'; "
                f"accepted there: {ACCEPTED}"
            )
        return place
    return local_place(known, [Path(folder) for folder in known.installed]) or _hub_place(known)


def is_here(known: Known, root: Path | None, cache: Path | None) -> bool:
    """Whether the dataset can be loaded without the network: installed, in `root`, or downloaded before."""
    try:
        if known.name == "digits" or root is not None:
            locate(known, root)
            return True
        if local_place(known, [Path(folder) for folder in known.installed]) is not None:
            return True
    except InputError:
        return False
    return read_meta(folder_for(known.name, _hub_place(known).digest(), cache)) is not None


def _candidates(known: Known, root: Path) -> list[Path]:
    return [root / known.name, *(root / folder for folder in known.folders), root]


def _digits_place() -> Place:
    file = digits_file()
    if file is None:
        raise InputError("dataset 'digits' ships inside scikit-learn, which is not installed; install scikit-learn")
    return Place(lambda: files_digest(file.parent, [file]), lambda: read_digits(file))


def local_place(known: Known, folders: list[Path]) -> Place | None:
    for folder in folders:
        for layout in _LAYOUTS:
            found = layout.find(folder, known) if folder.is_dir() else None
            if found is not None:
                return _place_of(known, layout, folder, found)
    return None


def _place_of(known: Known, layout: _Layout, folder: Path, found: Found) -> Place:
    return Place(
        digest=lambda: files_digest(folder, [file for files in found.values() for file in files]),
        decode=lambda: assemble(known, layout.read(folder, found, known)),
    )


def _hub_place(known: Known) -> Place:
    def decode() -> Decoded:
        from polyfed.data.hub import decode_hub

        installed = " or ".join(f"'{folder}'" for folder in known.installed)
        looked = "no data.root is set" + (f", there are no files of it in {installed}" if installed else "")
        return decode_hub(known, looked, ACCEPTED)

    return Place(digest=lambda: f"hub:{known.hub}:{known.hub_config}", decode=decode)
