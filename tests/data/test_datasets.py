"""Datasets from digits, arrays, torch and Hugging Face; and the cache that keeps them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from polyfed.data.dataset import Dataset, catalogue, from_arrays, from_huggingface, from_torch, load, open_cached
from polyfed.errors import InputError


def numbers(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return dataset.train.inputs.numpy(), dataset.train.labels.numpy()


def some_pictures(number: int = 12, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (number, channels, 6, 5), dtype=np.uint8), np.arange(number) % 3


def test_digits(tmp_path: Path) -> None:
    digits = load("digits", cache=tmp_path)
    assert (digits.name, digits.classes, digits.shape, digits.source) == ("digits", 10, (1, 8, 8), "scikit-learn")
    assert digits.test is not None
    assert (len(digits.train.labels), len(digits.test.labels)) == (1438, 359)
    assert digits.train.inputs.dtype == torch.uint8 and digits.train.labels.dtype == torch.int64
    # The first picture of the file is a zero whose first row is 0 0 5 13 9 1 0 0 of 16.
    assert digits.train.inputs[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert digits.train.labels[0] == 0
    shares = np.bincount(digits.test.labels.numpy()) / (
        np.bincount(digits.train.labels.numpy()) + np.bincount(digits.test.labels.numpy())
    )
    assert np.all(np.abs(shares - 0.2) < 0.005)


def test_digits_equal_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits, official = load("digits", cache=tmp_path), load_digits()
    assert digits.test is not None
    ours = torch.cat([digits.train.inputs, digits.test.inputs]).reshape(-1, 64).numpy()
    theirs = np.rint(official.data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))


def test_opening_needs_no_heavy_library_and_importing_not_even_torch(tmp_path: Path) -> None:
    folder = load("digits", cache=tmp_path).folder
    program = (
        "import sys; import polyfed.data.dataset as d, polyfed.data.partition; assert 'torch' not in sys.modules;"
        f"x = d.open_cached({str(folder)!r}); assert len(x.train.labels) == 1438;"
        "heavy = {'sklearn', 'scipy', 'datasets', 'pyarrow', 'flwr_datasets', 'PIL'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_tensors_are_mapped_without_warning_and_writes_stay_private(tmp_path: Path) -> None:
    folder = load("digits", cache=tmp_path).folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = open_cached(folder), open_cached(folder)
    before = int(second.train.inputs[0, 0, 0, 0])
    first.train.inputs[0, 0, 0, 0] = before + 1
    assert int(second.train.inputs[0, 0, 0, 0]) == before
    assert int(open_cached(folder).train.inputs[0, 0, 0, 0]) == before


def test_the_cache_is_used_again_and_found_through_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path))
    folder = load("digits").folder
    assert folder.parent == tmp_path
    stamp = (folder / "dataset.json").stat().st_mtime_ns
    assert load("digits").folder == folder
    assert (folder / "dataset.json").stat().st_mtime_ns == stamp


def cut_a_file(folder: Path) -> None:
    file = folder / "train_inputs.npy"
    file.write_bytes(file.read_bytes()[:1000])


def spoil_the_description(folder: Path) -> None:
    (folder / "dataset.json").write_text("{", encoding="utf-8")


def change_the_description(folder: Path) -> None:
    meta = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    meta["classes"] = 11
    (folder / "dataset.json").write_text(json.dumps(meta), encoding="utf-8")


def lose_a_file(folder: Path) -> None:
    (folder / "test_labels.npy").unlink()


@pytest.mark.parametrize("damage", [cut_a_file, spoil_the_description, change_the_description, lose_a_file])
def test_a_damaged_cache_is_decoded_again(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    whole = load("digits", cache=tmp_path)
    images, labels = (array.copy() for array in numbers(whole))
    damage(whole.folder)
    with pytest.raises(InputError, match="not a complete dataset folder"):
        open_cached(whole.folder)
    again = load("digits", cache=tmp_path)
    assert np.array_equal(numbers(again)[0], images) and np.array_equal(numbers(again)[1], labels)
    assert [file.name for file in tmp_path.iterdir()] == [whole.folder.name]


def test_many_at_once_do_no_harm(tmp_path: Path) -> None:
    images, labels = some_pictures()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: from_arrays("mine", images, labels, cache=tmp_path), range(16)))
    assert len({dataset.folder for dataset in made}) == 1
    assert all(np.array_equal(numbers(dataset)[0], images) for dataset in made)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_process_left_is_swept_after_a_day(tmp_path: Path) -> None:
    name = load("digits", cache=tmp_path / "first").folder.name
    old, fresh = (tmp_path / "cache" / f".{name}-{word}" for word in ("old", "fresh"))
    for left in (old, fresh):
        left.mkdir(parents=True)
        (left / "half.npy").write_bytes(b"half")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    load("digits", cache=tmp_path / "cache")
    assert not old.exists() and fresh.exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(InputError, match="POLYFED_CACHE"):
        load("digits", cache=tmp_path / "file")


def test_arrays_in_every_layout_are_the_same_dataset(tmp_path: Path) -> None:
    images, labels = some_pictures(channels=3)
    plain = from_arrays("mine", images, labels, images[:4], labels[:4], class_names=["a", "b", "c"], cache=tmp_path)
    assert (plain.classes, plain.shape, plain.class_names) == (3, (3, 6, 5), ("a", "b", "c"))
    assert plain.test is not None and len(plain.test.labels) == 4
    last = from_arrays("mine", images.transpose(0, 2, 3, 1), labels, cache=tmp_path)
    assert np.array_equal(numbers(last)[0], images) and last.kind == "picture"
    assert np.array_equal(
        numbers(from_arrays("mine", torch.tensor(images), torch.tensor(labels), cache=tmp_path))[1], labels
    )
    grey = from_arrays("grey", images[:, 0], labels, cache=tmp_path)
    assert grey.shape == (1, 6, 5) and grey.test is None


def test_floats_keep_every_digit(tmp_path: Path) -> None:
    values = np.random.Generator(np.random.PCG64(3)).normal(size=(6, 3, 4, 5)).astype(np.float32)
    data = from_arrays("mine", values, LABELS[:6], values[:2], LABELS[:2], cache=tmp_path)
    assert (data.kind, data.shape) == ("numbers", (3, 4, 5))
    assert np.array_equal(numbers(data)[0], values)
    rows = from_arrays("rows", values[:, 0, 0], LABELS[:6], cache=tmp_path)
    assert rows.shape == (5,) and np.array_equal(numbers(rows)[0], values[:, 0, 0])
    doubles = from_arrays("doubles", values[:, 0].astype(np.float64), LABELS[:6], cache=tmp_path)
    assert doubles.shape == (4, 5) and np.array_equal(numbers(doubles)[0], values[:, 0])


def test_integers_are_tokens_if_there_is_a_vocabulary(tmp_path: Path) -> None:
    tokens = np.array([[1, 2, 0], [5, 0, 0]])
    data = from_arrays("text", tokens, [0, 1], vocabulary=6, cache=tmp_path)
    assert (data.kind, data.vocabulary, data.shape) == ("tokens", 6, (3,))
    assert np.array_equal(numbers(data)[0], tokens)
    assert from_arrays("counts", tokens, [0, 1], cache=tmp_path).kind == "numbers"
    with pytest.raises(InputError, match="tokens range from 0 to 5; expected 0 to 4"):
        from_arrays("text", tokens, [0, 1], vocabulary=5, cache=tmp_path)


def test_labels_may_be_text_and_columns_are_kept(tmp_path: Path) -> None:
    values = np.zeros((4, 2), np.float32)
    data = from_arrays(
        "ward",
        values,
        ["ill", "well", "ill", "well"],
        values[:1],
        ["unsure"],  # a class that only the test split has
        columns={"hospital": ["north", "south", "south", "north"]},
        cache=tmp_path,
    )
    assert data.class_names == ("ill", "unsure", "well")
    assert data.train.labels.tolist() == [0, 2, 0, 2]
    assert data.test is not None and data.test.labels.tolist() == [1]
    assert open_cached(data.folder).train.columns == {"hospital": ("north", "south", "south", "north")}
    with pytest.raises(InputError, match="column 'hospital' has 1 entries for 4 samples"):
        from_arrays("ward", values, [0, 1, 0, 1], columns={"hospital": ["north"]}, cache=tmp_path)


def test_other_content_is_another_folder(tmp_path: Path) -> None:
    images, labels = some_pictures()
    folders = {
        from_arrays("mine", images, labels, cache=tmp_path).folder,
        from_arrays("mine", 255 - images, labels, cache=tmp_path).folder,
        from_arrays("mine", images, labels[::-1].copy(), cache=tmp_path).folder,
        from_arrays("other", images, labels, cache=tmp_path).folder,
    }
    assert len(folders) == 4


IMAGES, LABELS = some_pictures()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ((IMAGES, LABELS[:5]), "12 samples but 5 labels"),
        ((np.full((2, 4, 4), np.nan), LABELS[:2]), "32 values are missing or not finite"),
        ((IMAGES.astype(str), LABELS), "expected numbers"),
        ((IMAGES[:, :, :, :0], LABELS), "pictures have shape"),
        ((LABELS * 1.0, LABELS), "inputs have shape"),
        ((IMAGES, np.eye(12)), "multi-label tasks are not supported"),
        ((IMAGES, np.array([["a", "b"]] * 12)), "multi-label tasks are not supported"),
        ((IMAGES, np.eye(12, dtype=bool)), "multi-label tasks are not supported"),
        ((IMAGES, ["a", float("nan"), *"ab" * 5]), "1 labels are missing, the first in row 1"),
        ((IMAGES, np.array(["a", None, np.nan, *"aaabbbccc"], dtype=object)), "2 labels are missing"),
        ((IMAGES, [["a"], ["a", "b"]] * 6), "the labels do not form an array"),
        ((IMAGES, LABELS * 1_000_000), "the largest label is 2000000"),
        ((IMAGES, LABELS * 1.0, IMAGES, LABELS.astype(str)), "some labels are text and others are numbers"),
        ((IMAGES, LABELS - 1), "found label -1"),
        ((IMAGES, LABELS + 0.5), "regression is not supported"),
        ((IMAGES, LABELS[:, None, None]), "labels have shape"),
        ((IMAGES, LABELS, IMAGES), "go together"),
        ((IMAGES, LABELS, IMAGES[:, :, :3], LABELS), r"training samples are 1x6x5 \(uint8\) but test samples 1x3x5"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: tuple[np.ndarray, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        from_arrays("mine", *arrays, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_too_few_class_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found label 2; with 2 classes"):
        from_arrays("mine", IMAGES, LABELS, class_names=["a", "b"], cache=tmp_path)


def test_text_labels_follow_the_order_of_class_names(tmp_path: Path) -> None:
    dataset = from_arrays("mine", IMAGES[:3], ["b", "a", "b"], class_names=["b", "a"], cache=tmp_path)
    assert dataset.class_names == ("b", "a") and dataset.train.labels.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="found label 'a', which is not in class_names: b, c"):
        from_arrays("mine", IMAGES[:3], ["b", "a", "b"], class_names=["b", "c"], cache=tmp_path)


def test_labels_in_a_column_and_as_bytes(tmp_path: Path) -> None:
    dataset = from_arrays("mine", IMAGES[:2], [b"x", b"y"], IMAGES[:2], np.array([[b"y"], [b"x"]]), cache=tmp_path)
    assert dataset.test is not None and dataset.class_names == ("x", "y")
    assert dataset.train.labels.tolist() == [0, 1] and dataset.test.labels.tolist() == [1, 0]


class Items(torch.utils.data.Dataset[Any]):
    """A torch dataset with any items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


def test_labels_of_torch_datasets_are_read_like_those_of_arrays(tmp_path: Path) -> None:
    pixels = torch.zeros(1, 4, 4)
    dataset = from_torch("mine", Items([(pixels, "ill"), (pixels, "well"), (pixels, "ill")]), cache=tmp_path)
    assert dataset.class_names == ("ill", "well") and dataset.train.labels.tolist() == [0, 1, 0]
    for label, sentence in ((0.7, "regression is not supported"), (torch.eye(2)[0], "multi-label")):
        with pytest.raises(InputError, match=sentence):
            from_torch("mine", Items([(pixels, label), (pixels, label)]), cache=tmp_path)
    with pytest.raises(InputError, match=r"item 0 is a dict; expected a pair \(input, label\)"):
        from_torch("mine", Items([{"x": pixels, "y": 0}]), cache=tmp_path)


def test_from_torch(tmp_path: Path) -> None:
    pairs = TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS))
    dataset = from_torch("mine", pairs, pairs, cache=tmp_path)
    assert np.array_equal(numbers(dataset)[0], IMAGES) and np.array_equal(numbers(dataset)[1], LABELS)
    assert dataset.test is not None


def test_from_huggingface(tmp_path: Path) -> None:
    import datasets
    from PIL import Image

    images, labels = some_pictures(channels=3)
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b", "c"])})
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in images]
    rows = datasets.Dataset.from_dict({"picture": pictures, "kind": labels}, features=features)
    both = from_huggingface("mine", datasets.DatasetDict({"train": rows, "validation": rows}), cache=tmp_path)
    assert np.array_equal(numbers(both)[0], images) and both.class_names == ("a", "b", "c")
    assert both.test is not None and np.array_equal(both.test.labels.numpy(), labels)
    single = from_huggingface("mine", rows, image="picture", label="kind", cache=tmp_path)
    assert single.test is None
    with pytest.raises(InputError, match="no column 'pictur'; did you mean 'picture'"):
        from_huggingface("mine", rows, image="pictur", cache=tmp_path)
    with pytest.raises(InputError, match="is a list, but a Dataset"):
        from_huggingface("mine", [1, 2], cache=tmp_path)
    plain = datasets.Dataset.from_dict({"image": images[:, 0].tolist(), "label": labels})
    assert np.array_equal(numbers(from_huggingface("mine", plain, cache=tmp_path))[0], images[:, :1])


def test_catalogue_says_what_is_here(tmp_path: Path) -> None:
    rows = {info.name: info for info in catalogue()}
    assert set(rows) == {
        "digits", "mnist", "fashion_mnist", "svhn", "cifar10", "cifar100", "cinic10", "tiny_imagenet", "flowers102",
        "breast_cancer", "wine", "uci_har", "ag_news", "shakespeare",
    }  # fmt: skip
    assert rows["digits"].available()
    assert not rows["mnist"].available(tmp_path)
    assert not rows["cifar10"].available(cache=tmp_path)
    np.savez(tmp_path / "mnist.npz", x_train=IMAGES, y_train=LABELS)
    assert rows["mnist"].available(tmp_path)


def test_an_unknown_dataset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="unknown dataset 'mnits'; did you mean 'mnist'"):
        load("mnits")


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.root is .*none.* no such folder"):
        load("mnist", root=tmp_path / "none")
    with pytest.raises(InputError, match=r"cannot find dataset 'mnist' in data\.root .* accepted: idx files"):
        load("mnist", root=tmp_path)


def test_without_root_and_hub_the_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "HF_HUB_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        InputError, match=r"'cinic10' was not found: .*flwrlabs/cinic10.*set data\.root .*image folders"
    ):
        load("cinic10", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
