"""Search for the files of a dataset: in a folder, in an installed package or on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polyfed.data.array_files import find_cifar, find_mat, find_npz, read_cifar, read_mat, read_npz
from polyfed.data.arrays import Decoded
from polyfed.data.assemble import SplitFiles, Splits, assemble
from polyfed.data.bundled_tables import BUNDLED_TABLES, read_table, table_file
from polyfed.data.cache import files_digest, folder_for, read_meta
from polyfed.data.catalogue import KnownDataset
from polyfed.data.digits import digits_file, read_digits
from polyfed.data.folders import find_folders, read_folders
from polyfed.data.idx import find_idx, read_idx
from polyfed.data.parquet import find_parquet, read_parquet
from polyfed.data.sensor_files import find_har, read_har
from polyfed.data.speeches import find_speeches, read_speeches
from polyfed.data.tables import find_csv, read_csv
from polyfed.errors import InputError


@dataclass(frozen=True)
class Place:
    """Location of a dataset: a function that returns the digest of its files, and one that decodes them."""

    name: str  # for users: a folder, or where else the data comes from
    digest: Callable[[], str]
    decode: Callable[[], Decoded]


@dataclass(frozen=True)
class _Layout:
    """File layout: a function that finds the files of each split, and one that decodes them."""

    name: str  # value of `data.layout`; "auto": layout of one published dataset
    find: Callable[[Path, KnownDataset], SplitFiles | None]
    read: Callable[[Path, SplitFiles, KnownDataset], Splits]


_LAYOUTS = (
    _Layout("idx", find_idx, read_idx),
    _Layout("parquet", find_parquet, read_parquet),
    _Layout("auto", find_mat, read_mat),
    _Layout("auto", find_cifar, read_cifar),
    _Layout("auto", find_har, read_har),
    _Layout("auto", find_speeches, read_speeches),
    _Layout("npz", find_npz, read_npz),
    _Layout("csv", find_csv, read_csv),
    _Layout("folders", find_folders, read_folders),
)
ACCEPTED = (
    "idx files (train-images-idx3-ubyte[.gz], ...), parquet (train*.parquet, test*.parquet), SVHN's train_32x32.mat, "
    "CIFAR's .bin files, .npz (train.npz and test.npz with x and y, or one with x_train, y_train, ...), "
    "csv (train.csv, test.csv, or one file) or image folders (train/<class>/*, test/<class>/*)"
)


def locate(known: KnownDataset, root: Path | None) -> Place:
    """Return the first location that has the dataset. This only searches for file names and decodes nothing."""
    if known.name in ("digits", *BUNDLED_TABLES):
        return _bundled_place(known.name)
    if root is not None:
        if not root.is_dir():
            raise InputError(f"data.root is '{root}', but there is no such folder; it must hold '{known.name}'")
        place = local_place(known, _candidates(known, root))
        if place is None:
            raise InputError(
                f"cannot find dataset '{known.name}' in data.root '{root}' or in its subfolder '{known.name}'"
                f"{_layout_hint(known)}; accepted: {ACCEPTED}"
            )
        return place
    return local_place(known, [Path(folder) for folder in known.installed]) or _hub_place(known)


def is_available(known: KnownDataset, root: Path | None, cache: Path | None) -> bool:
    """Return whether the dataset can be loaded without the network: installed, in `root`, or downloaded before."""
    try:
        if known.name in ("digits", *BUNDLED_TABLES) or root is not None:
            locate(known, root)
            return True
        if local_place(known, [Path(folder) for folder in known.installed]) is not None:
            return True
    except InputError:
        return False
    digest = f"{_hub_place(known).digest()}{known.format.digest()}"
    return read_meta(folder_for(known.name, digest, cache)) is not None


def _candidates(known: KnownDataset, root: Path) -> list[Path]:
    return [root / known.name, *(root / folder for folder in known.folders), root]


def _layout_hint(known: KnownDataset) -> str:
    return "" if known.format.layout == "auto" else f" as {known.format.layout}"


def _bundled_place(name: str) -> Place:
    file = digits_file() if name == "digits" else table_file(name)
    if file is None:
        raise InputError(f"dataset '{name}' ships with scikit-learn, which is not installed; install scikit-learn")
    decode = (lambda: read_digits(file)) if name == "digits" else (lambda: read_table(name, file))
    return Place("bundled with scikit-learn", lambda: files_digest(file.parent, [file]), decode)


def local_place(known: KnownDataset, folders: list[Path]) -> Place | None:
    """Return the first folder that has files in a supported layout, or None."""
    layout_name = known.format.layout
    for folder in folders:
        for layout in (entry for entry in _LAYOUTS if layout_name in ("auto", entry.name)):
            files = layout.find(folder, known) if folder.is_dir() else None
            if files is not None:
                return _place_of(known, layout, folder, files)
    return None


def _place_of(known: KnownDataset, layout: _Layout, folder: Path, split_files: SplitFiles) -> Place:
    return Place(
        str(folder),
        digest=lambda: files_digest(folder, [file for files in split_files.values() for file in files]),
        decode=lambda: assemble(known, layout.read(folder, split_files, known)),
    )


def _hub_place(known: KnownDataset) -> Place:
    def decode() -> Decoded:
        if not known.hub:
            raise InputError(
                f"dataset '{known.name}' cannot be downloaded; set data.root to the folder of its files, which "
                "docs/data.md describes"
            )
        from polyfed.data.hub import decode_hub

        installed = " or ".join(f"'{folder}'" for folder in known.installed)
        searched = "data.root is not set" + (f", {installed} has no files of it" if installed else "")
        return decode_hub(known, searched, ACCEPTED)

    return Place(
        f"Hugging Face hub: {known.hub}", digest=lambda: f"hub:{known.hub}:{known.hub_config}", decode=decode
    )
