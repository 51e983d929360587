"""The datasets that polyfed knows by name: shape, classes, usual folders and name on the Hugging Face hub."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from polyfed import plugins
from polyfed.data.arrays import size_text
from polyfed.errors import InputError, nearest

LAYOUTS = ("auto", "folders", "parquet", "csv", "npz", "idx")


@dataclass(frozen=True)
class Format:
    """File format of a dataset: the layout, the columns of tables, and how to convert text and pictures."""

    layout: str = "auto"
    label: str | None = None  # column of the labels; None: 'label', 'target', 'class', 'y' or the like
    text: str | None = None  # column of the text; None: 'text' if there is one
    vocabulary: int = 10_000  # number of tokens that words are hashed to, including 0 for padding
    text_length: int = 64  # words per sample; shorter texts are padded, longer ones cut
    resize: int | None = None  # scale pictures to this many pixels in height and width
    tokenizer: str | None = None  # tokenizer.json of Hugging Face tokenizers, instead of hashed words

    def digest(self) -> str:
        """Return a text that differs for formats that read the same files differently; empty for the default."""
        if replace(self, layout="auto") == Format():
            return ""
        fields = {key: value for key, value in asdict(self).items() if key != "tokenizer"}
        digest = hashlib.blake2b(repr(fields).encode(), digest_size=4)
        if self.tokenizer is not None:
            digest.update(read_tokenizer(self.tokenizer).encode())
        return "-" + digest.hexdigest()


def read_tokenizer(path: str) -> str:
    """Return the content of a tokenizer file. Raise `InputError` if it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise InputError(f"data.tokenizer is {path}, which cannot be read: {reason}") from None


@dataclass(frozen=True)
class KnownDataset:
    """Catalogue entry of a dataset. The sample counts are the official ones; files may hold fewer samples."""

    name: str
    shape: tuple[int, ...] | None  # None: the shape of the samples in the files
    classes: int  # 0: the number of classes in the files
    train: int
    test: int
    hub: str = ""
    hub_config: str | None = None
    folders: tuple[str, ...] = ()  # further subfolders of `root` that hold it, as other tools unpack it
    installed: tuple[str, ...] = ()  # absolute folders in which a system package puts it
    resize: int | None = None  # pictures of another size are cropped to the central square and scaled to this size
    jpeg_original: bool = False  # the dataset was published as JPEG, so JPEG files are not lossy copies
    valid_joins_train: bool = False
    valid_is_test: bool = False  # the labels of the official test split are not public
    kind: str = "picture"  # or 'numbers', 'tokens'
    format: Format = Format()

    @property
    def channels(self) -> int | None:
        """The channels of its pictures; None if the first picture decides."""
        return self.shape[0] if self.shape is not None and len(self.shape) == 3 else None


KNOWN: Mapping[str, KnownDataset] = {
    known.name: known
    for known in (
        KnownDataset("digits", (1, 8, 8), 10, 1438, 359),
        KnownDataset("breast_cancer", (30,), 2, 455, 114, kind="numbers"),
        KnownDataset("wine", (13,), 3, 142, 36, kind="numbers"),
        KnownDataset("uci_har", (9, 128), 6, 7352, 2947, folders=("UCI HAR Dataset",), kind="numbers"),
        KnownDataset("ag_news", (64,), 4, 120_000, 7_600, "fancyzhx/ag_news", kind="tokens"),
        KnownDataset("shakespeare", (80,), 65, 0, 0, kind="tokens"),
        KnownDataset("mnist", (1, 28, 28), 10, 60_000, 10_000, "ylecun/mnist", folders=("MNIST/raw",)),
        KnownDataset(
            "fashion_mnist",
            (1, 28, 28),
            10,
            60_000,
            10_000,
            "zalando-datasets/fashion_mnist",
            folders=("FashionMNIST/raw", "fashion-mnist"),
            installed=("/usr/share/datasets/fashion-mnist", "/usr/share/dataset-fashion-mnist"),
        ),
        KnownDataset("svhn", (3, 32, 32), 10, 73_257, 26_032, "ufldl-stanford/svhn", "cropped_digits"),
        KnownDataset(
            "cifar10",
            (3, 32, 32),
            10,
            50_000,
            10_000,
            "uoft-cs/cifar10",
            folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        ),
        KnownDataset(
            "cifar100",
            (3, 32, 32),
            100,
            50_000,
            10_000,
            "uoft-cs/cifar100",
            folders=("cifar-100-binary", "cifar-100-python"),
        ),
        KnownDataset(
            "cinic10", (3, 32, 32), 10, 90_000, 90_000, "flwrlabs/cinic10", folders=("CINIC-10", "cinic-10")
        ),
        KnownDataset(
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
        KnownDataset(
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
    """A dataset as `polyfed list datasets` shows it."""

    name: str
    shape: tuple[int, ...]
    classes: int
    train: int
    test: int

    def available(self, root: Path | None = None, cache: Path | None = None) -> bool:
        """Return whether it can be loaded now, without a download."""
        from polyfed.data.locations import is_available

        return is_available(KNOWN[self.name], root, cache)


def catalogue() -> list[DatasetInfo]:
    """Return all datasets that polyfed knows by name."""
    return [DatasetInfo(k.name, k.shape or (), k.classes, k.train, k.test) for k in KNOWN.values()]


def known_dataset(name: str, *, root: Path | None = None, how: Format | None = None) -> KnownDataset:
    """Return the catalogue entry of a dataset. With a root, any other name stands for your own files."""
    how = how or Format()
    if how.layout not in LAYOUTS:
        raise InputError(f"data.layout is '{how.layout}'; {nearest(how.layout, LAYOUTS)}")
    known = KNOWN.get(name)
    if known is not None:
        shape = (how.text_length,) if known.name == "ag_news" else known.shape
        return replace(known, format=how, shape=shape, resize=how.resize or known.resize)
    if root is None:
        known_names = [*KNOWN, *plugins.entry_points(plugins.DATASETS)]
        raise InputError(
            f"unknown dataset '{name}'; {nearest(name, known_names)} For files of your own, set data.root to their "
            "folder."
        )
    return KnownDataset(name, None, 0, 0, 0, resize=how.resize, kind="any", format=how)


def check_known(known: KnownDataset, shape: tuple[int, ...], kind: str, classes: int) -> None:
    """Raise `InputError` if files cannot be the dataset that the config names."""
    if known.kind == "any":
        return
    expected = known.shape
    if known.resize is not None and kind == "picture" and expected is not None:
        expected = (expected[0], known.resize, known.resize)
    if kind != known.kind or (expected is not None and shape != expected):
        raise InputError(
            f"data.dataset is '{known.name}': {known.kind} of shape {size_text(expected or ())}, but the "
            f"files hold {kind} of shape {size_text(shape)}; give data of your own another name, such as "
            "data.dataset: mine"
        )
    if classes > known.classes:
        raise InputError(
            f"data.dataset is '{known.name}', which has {known.classes} classes, but the files hold {classes}; give "
            "data of your own another name, such as data.dataset: mine"
        )
