"""The datasets known by name: what each one is, what its folders are called and where the hub keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfed.errors import InputError, nearest


@dataclass(frozen=True)
class Known:
    """One row of the catalogue (experiments.md section 1). Counts are the official ones; files may hold fewer."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int
    hub: str = ""
    hub_config: str | None = None
    folders: tuple[str, ...] = ()  # further subfolders of `root` that hold it, as other tools unpack it
    installed: tuple[str, ...] = ()  # absolute folders in which a system package puts it
    resize: int | None = None  # pictures of another size are cropped to the central square and scaled to this
    jpeg_original: bool = False  # the dataset was published as JPEG, so JPEG is no loss
    valid_joins_train: bool = False
    valid_is_test: bool = False  # the labels of the official test part are not public


KNOWN: Mapping[str, Known] = {
    known.name: known
    for known in (
        Known("digits", (1, 8, 8), 10, 1438, 359),
        Known("mnist", (1, 28, 28), 10, 60_000, 10_000, "ylecun/mnist", folders=("MNIST/raw",)),
        Known(
            "fashion_mnist",
            (1, 28, 28),
            10,
            60_000,
            10_000,
            "zalando-datasets/fashion_mnist",
            folders=("FashionMNIST/raw", "fashion-mnist"),
            installed=("/usr/share/datasets/fashion-mnist", "/usr/share/dataset-fashion-mnist"),
        ),
        Known("svhn", (3, 32, 32), 10, 73_257, 26_032, "ufldl-stanford/svhn", "cropped_digits"),
        Known(
            "cifar10",
            (3, 32, 32),
            10,
            50_000,
            10_000,
            "uoft-cs/cifar10",
            folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        ),
        Known(
            "cifar100",
            (3, 32, 32),
            100,
            50_000,
            10_000,
            "uoft-cs/cifar100",
            folders=("cifar-100-binary", "cifar-100-python"),
        ),
        Known("cinic10", (3, 32, 32), 10, 90_000, 90_000, "flwrlabs/cinic10", folders=("CINIC-10", "cinic-10")),
        Known(
            "tiny_imagenet",
            (3, 64, 64),
            200,
            100_000,
            10_000,
            "zh-plus/tiny-imagenet",
            folders=("tiny-imagenet-200",),
            resize=64,
            jpeg_original=True,
            valid_is_test=True,
        ),
        Known(
            "flowers102",
            (3, 64, 64),
            102,
            2_040,
            6_149,
            "dpdl-benchmark/oxford_flowers102",
            folders=("flowers-102",),
            resize=64,
            jpeg_original=True,
            valid_joins_train=True,
        ),
    )
}


@dataclass(frozen=True)
class DatasetInfo:
    """What a list of datasets says about one."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int

    def available(self, root: Path | None = None, cache: Path | None = None) -> bool:
        """Whether it can be loaded now, without a download."""
        from polyfed.data.locations import is_here

        return is_here(KNOWN[self.name], root, cache)


def catalogue() -> list[DatasetInfo]:
    """All datasets that can be loaded by name."""
    return [DatasetInfo(k.name, k.shape, k.classes, k.train, k.test) for k in KNOWN.values()]


def find(name: str) -> Known:
    """The row of that name."""
    known = KNOWN.get(name)
    if known is None:
        raise InputError(f"unknown dataset '{name}'; {nearest(name, KNOWN)}")
    return known
