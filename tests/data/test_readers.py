"""Every file layout `data.root` may have, whole and damaged; all files are made here."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.data.dataset import Dataset, load
from polyfed.errors import InputError

RNG = np.random.default_rng(11)
GREY = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(20) % 10


def opened(name: str, root: Path) -> Dataset:
    return load(name, root=root, cache=root.parent / "cache")


def idx_bytes(array: np.ndarray, magic: int | None = None) -> bytes:
    head = [magic if magic is not None else 0x0800 + array.ndim, *array.shape]
    return b"".join(int(number).to_bytes(4, "big") for number in head) + array.astype(np.uint8).tobytes()


def write_idx(root: Path, changes: dict[str, bytes] | None = None, *, zipped: bool = True) -> Path:
    """A small MNIST; `changes` replace the content of a file (before it is zipped)."""
    root.mkdir(parents=True, exist_ok=True)
    for prefix, word, number in (("train", "train", 20), ("t10k", "test", 6)):
        for kind, array, ending in (("images", GREY, "idx3-ubyte"), ("labels", LABELS, "idx1-ubyte")):
            content = (changes or {}).get(f"{word}_{kind}", idx_bytes(array[:number]))
            file = root / f"{prefix}-{kind}-{ending}{'.gz' if zipped else ''}"
            file.write_bytes(gzip.compress(content) if zipped else content)
    return root


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_idx(tmp_path: Path, zipped: bool, place: str) -> None:
    write_idx(tmp_path / "root" / place, zipped=zipped)
    mnist = opened("mnist", tmp_path / "root")
    assert np.array_equal(mnist.train.inputs[:, 0].numpy(), GREY)
    assert np.array_equal(mnist.train.labels.numpy(), LABELS)
    assert mnist.test is not None and len(mnist.test.labels) == 6
    assert (mnist.classes, mnist.shape, mnist.source) == (
        10,
        (1, 28, 28),
        "idx files (20 of 60,000 training samples)",
    )


def test_other_files_do_not_pass_as_a_known_dataset(tmp_path: Path) -> None:
    """Pictures of another shape, and tables, are refused under the name of MNIST; a subset is said to be one."""
    from PIL import Image

    for label in ("healthy", "ill"):
        folder = tmp_path / "scans" / "train" / label
        folder.mkdir(parents=True)
        for number in range(4):
            Image.fromarray(GREY[number]).resize((48, 64)).save(folder / f"{number}.png")
    with pytest.raises(InputError, match="'mnist': picture of shape 1x28x28, but the files hold picture of shape"):
        opened("mnist", tmp_path / "scans")
    assert opened("scans", tmp_path / "scans").classes == 2

    (tmp_path / "sensors").mkdir()
    (tmp_path / "sensors" / "train.csv").write_text("a,b,label\n" + "1.5,2.5,0\n0.5,1.0,1\n" * 6)
    with pytest.raises(InputError, match="'mnist': picture of shape 1x28x28, but the files hold"):
        opened("mnist", tmp_path / "sensors")

    small = opened("mnist", write_idx(tmp_path / "subset"))
    assert small.source == "idx files (20 of 60,000 training samples)"


@pytest.mark.parametrize("name", ["uci_har", "shakespeare"])
def test_a_dataset_that_is_not_on_the_hub_needs_a_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' cannot be downloaded; set data.root"):
        load(name, cache=tmp_path)


def test_a_changed_file_is_decoded_anew(tmp_path: Path) -> None:
    first = opened("mnist", write_idx(tmp_path / "root"))
    second = opened("mnist", write_idx(tmp_path / "root", {"train_images": idx_bytes(255 - GREY)}))
    assert first.folder != second.folder
    assert np.array_equal(second.train.inputs[:, 0].numpy(), 255 - GREY)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train_images": idx_bytes(GREY, 0x0801)}, "train-images.* begins with 00000801; expected 00000803"),
        ({"train_images": b""}, "begins with nothing"),
        ({"train_images": idx_bytes(GREY)[:10]}, r"has 10 bytes, but its header says"),
        ({"train_images": idx_bytes(GREY)[:-1]}, r"has 15695 bytes, but its header says 15696"),
        ({"train_images": idx_bytes(GREY) + b"x"}, r"has 15697 bytes"),
        ({"train_labels": idx_bytes(LABELS[:19])}, "20 samples but 19 labels"),
        ({"train_labels": idx_bytes(LABELS + 1)}, "which has 10 classes, but the files hold 11"),
        ({"test_images": idx_bytes(GREY[:0]), "test_labels": idx_bytes(LABELS[:0])}, "found no samples"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, changes: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        opened("mnist", write_idx(tmp_path / "root", changes))
    assert not (tmp_path / "cache").exists()


def test_a_damaged_gz_file_is_refused(tmp_path: Path) -> None:
    file = write_idx(tmp_path / "root") / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for content in (whole[:-20], b"no gz at all", whole[:100] + bytes(50) + whole[150:]):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
            opened("mnist", tmp_path / "root")


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    (write_idx(tmp_path / "root") / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        InputError, match=r"train-images.* alone is not enough; .* also needs train-labels-idx1-ubyte"
    ):
        opened("mnist", tmp_path / "root")


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format=kind)
    return stream.getvalue()


def write_parquet(
    file: Path,
    pictures: list[bytes | None],
    labels: Any,
    names: list[str] | None = None,
    label: str = "label",
    **more: Any,
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": picture, "path": f"{number}.png"} for number, picture in enumerate(pictures)]
    table = pa.table({"image": images, label: labels, **more})
    if names is not None:
        info = {"info": {"features": {label: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    parquet.write_table(table, file)


def pictures_of(array: np.ndarray, kind: str = "PNG") -> list[bytes | None]:
    return [encoded(picture, kind) for picture in array]


def test_parquet_in_several_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    names = [f"class {number}" for number in range(10)]
    write_parquet(
        root / "train-00000-of-00002.parquet", pictures_of(COLOUR[:12]), LABELS[:12], names, coarse=LABELS[:12]
    )
    write_parquet(
        root / "train-00001-of-00002.parquet", pictures_of(COLOUR[12:]), LABELS[12:], names, coarse=LABELS[12:]
    )
    write_parquet(root / "test.parquet", pictures_of(COLOUR[:5]), LABELS[:5], names)
    cifar = opened("cifar10", root)
    assert np.array_equal(cifar.train.inputs.numpy(), COLOUR.transpose(0, 3, 1, 2))
    assert np.array_equal(cifar.train.labels.numpy(), LABELS)
    assert (cifar.class_names, cifar.source) == (tuple(names), "parquet (20 of 50,000 training samples)")
    assert cifar.test is not None and len(cifar.test.labels) == 5


def test_jpeg_copies_and_grey_pictures(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "root" / "train.parquet", [encoded(COLOUR[0], "JPEG"), encoded(COLOUR[1, :, :, 0])], [0, 1]
    )
    cifar = opened("cifar10", tmp_path / "root")
    assert cifar.source == "parquet (jpeg copies, 2 of 50,000 training samples)" and cifar.test is None
    assert np.array_equal(cifar.train.inputs[1].numpy(), np.stack([COLOUR[1, :, :, 0]] * 3))


def test_fine_labels_and_classes_from_the_schema(tmp_path: Path) -> None:
    root = tmp_path / "root" / "cifar100" / "data"
    write_parquet(root / "train-0.parquet", pictures_of(COLOUR), LABELS, label="fine_label", coarse_label=LABELS // 5)
    cifar = opened("cifar100", tmp_path / "root")
    assert cifar.classes == 100 and np.array_equal(cifar.train.labels.numpy(), LABELS)


def test_flowers_join_valid_to_train_and_are_scaled_to_64(tmp_path: Path) -> None:
    root = tmp_path / "root"
    wide = np.zeros((100, 160, 3), dtype=np.uint8)
    wide[:, 30:130] = 200  # exactly the central square, so nothing dark may be left
    write_parquet(root / "train.parquet", [encoded(wide)], [3])
    write_parquet(root / "valid.parquet", [encoded(wide)], [101])
    write_parquet(root / "test.parquet", [encoded(wide[:64, 48:112])], [0])
    flowers = opened("flowers102", root)
    assert flowers.train.labels.tolist() == [3, 101] and flowers.shape == (3, 64, 64)
    assert flowers.source == "parquet (central square scaled to 64x64, 2 of 2,040 training samples)"
    assert flowers.train.inputs.min() == 200


def test_without_a_test_part_the_validation_part_tests(tmp_path: Path) -> None:
    write_parquet(tmp_path / "root" / "train.parquet", pictures_of(COLOUR), LABELS)
    write_parquet(tmp_path / "root" / "validation.parquet", pictures_of(COLOUR[:3]), LABELS[:3])
    cinic = opened("cinic10", tmp_path / "root")
    assert cinic.test is not None and len(cinic.test.labels) == 3
    write_parquet(tmp_path / "root" / "test.parquet", pictures_of(COLOUR[:4]), LABELS[:4])
    cinic = opened("cinic10", tmp_path / "root")
    assert cinic.test is not None and len(cinic.test.labels) == 4 and len(cinic.train.labels) == 20
    assert cinic.source == "parquet (validation split unused, 20 of 90,000 training samples)"


@pytest.mark.parametrize(
    ("pictures", "labels", "names", "sentence"),
    [
        (pictures_of(COLOUR[:2]), [0, 10], None, "which has 10 classes, but the files hold 11"),
        (pictures_of(COLOUR[:2]), [0, -1], None, "found label -1"),
        (pictures_of(COLOUR[:2]), [0, 2], ["a", "b"], "found label 2; with 2 classes"),
        (
            pictures_of(COLOUR[:2]),
            [0, 1],
            [str(n) for n in range(11)],
            "which has 10 classes, but the files hold 11",
        ),
        (pictures_of(COLOUR[:2]), [0, None], None, "1 missing labels"),
        (pictures_of(COLOUR[:2]), ["a", "b"], None, "expected integers"),
        ([encoded(COLOUR[0]), None], [0, 1], None, "row 1: no picture bytes"),
        ([encoded(COLOUR[0]), b"no picture"], [0, 1], None, "row 1: the picture cannot be decoded"),
        ([encoded(COLOUR[0])[:200]], [0], None, "row 0: the picture cannot be decoded"),
        (
            [encoded(COLOUR[0]), encoded(COLOUR[0, :30])],
            [0, 1],
            None,
            "row 1: the picture is 3x30x32, but .* 3x32x32",
        ),
    ],
)
def test_wrong_parquet_content_is_refused(
    tmp_path: Path, pictures: list[bytes | None], labels: list[Any], names: list[str] | None, sentence: str
) -> None:
    write_parquet(tmp_path / "root" / "train.parquet", pictures, labels, names)
    with pytest.raises(InputError, match=sentence):
        opened("cifar10", tmp_path / "root")


def test_damaged_parquet_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "root" / "train.parquet"
    write_parquet(file, pictures_of(COLOUR), LABELS)
    whole = file.read_bytes()
    for content in (b"", b"no parquet", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"train\.parquet is not a complete parquet file"):
            opened("cifar10", tmp_path / "root")


def test_overwritten_bytes_in_parquet_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "root" / "train.parquet"
    write_parquet(file, pictures_of(COLOUR), LABELS)
    whole = file.read_bytes()
    file.write_bytes(whole[:40] + bytes(400) + whole[440:])
    with pytest.raises(InputError, match=r"train\.parquet"):
        opened("cifar10", tmp_path / "root")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "root" / "train.parquet", pictures_of(COLOUR), LABELS, label="lable")
    with pytest.raises(InputError, match="no column 'label'; did you mean 'lable'"):
        opened("cifar10", tmp_path / "root")


def test_a_test_part_alone_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "root" / "test.parquet", pictures_of(COLOUR), LABELS)
    with pytest.raises(InputError, match="found only a test split"):
        opened("cifar10", tmp_path / "root")


def test_mat(tmp_path: Path) -> None:
    from scipy.io import savemat

    (tmp_path / "root").mkdir()
    labels = np.where(LABELS == 0, 10, LABELS)[:, None]
    for word, number in (("train", 20), ("test", 4)):
        content = {"X": COLOUR[:number].transpose(1, 2, 3, 0), "y": labels[:number]}
        savemat(tmp_path / "root" / f"{word}_32x32.mat", content, do_compression=True)
    svhn = opened("svhn", tmp_path / "root")
    assert np.array_equal(svhn.train.inputs.numpy(), COLOUR.transpose(0, 3, 1, 2))
    assert (
        np.array_equal(svhn.train.labels.numpy(), LABELS)
        and svhn.source == "mat files (20 of 73,257 training samples)"
    )
    file = tmp_path / "root" / "train_32x32.mat"
    for damaged in (b"", b"no mat at all", file.read_bytes()[:500]):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"train_32x32\.mat"):
            opened("svhn", tmp_path / "root")
    savemat(file, {"X": COLOUR})
    with pytest.raises(InputError, match="has no array 'y'"):
        opened("svhn", tmp_path / "root")


def write_picture(file: Path, array: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(array, "JPEG" if file.suffix.upper() == ".JPEG" else "PNG"))


def test_image_folders(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number, name in enumerate(("train", "cat", "dog")):  # a class may be called like a part
        write_picture(root / "train" / name / "1.png", COLOUR[number])
    write_picture(root / "test" / "dog" / "2.png", COLOUR[5])
    cifar = opened("cifar100", root)
    assert cifar.class_names == ("cat", "dog", "train") and cifar.train.labels.tolist() == [0, 1, 2]
    assert np.array_equal(cifar.train.inputs[2].numpy(), COLOUR[0].transpose(2, 0, 1))
    assert cifar.test is not None and cifar.test.labels.tolist() == [1]
    assert cifar.source == "image folders (3 of 100 classes, 3 of 50,000 training samples)"
    first, second = (root / "train" / name / "1.png" for name in ("cat", "dog"))
    first.rename(root / "swap.png")
    second.rename(first)
    (root / "swap.png").rename(second)
    assert np.array_equal(opened("cifar100", root).train.inputs[1].numpy(), COLOUR[1].transpose(2, 0, 1))
    write_picture(root / "test" / "dgo" / "3.png", COLOUR[6])
    with pytest.raises(InputError, match="class 'dgo', which has no folder in train; did you mean 'dog'"):
        opened("cifar100", root)


def test_numbered_folders_are_sorted_as_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        write_picture(tmp_path / "root" / "train" / str(number) / "a.jpeg", COLOUR[number])
    flowers = opened("flowers102", tmp_path / "root")
    assert flowers.class_names == ("1", "2", "10")
    assert flowers.source == (
        "image folders (jpeg, central square scaled to 64x64, 3 of 102 classes, 3 of 2,040 training samples)"
    )


def test_tiny_imagenet_as_published(tmp_path: Path) -> None:
    root = tmp_path / "root" / "tiny-imagenet-200"
    picture = np.zeros((64, 64, 3), dtype=np.uint8)
    for name in ("n01", "n02"):
        write_picture(root / "train" / name / "images" / f"{name}_0.JPEG", picture)
    write_picture(root / "val" / "images" / "val_0.JPEG", picture)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t62\t62\n", encoding="utf-8")
    write_picture(root / "test" / "images" / "test_0.JPEG", picture)
    tiny = opened("tiny_imagenet", tmp_path / "root")
    assert tiny.train.labels.tolist() == [0, 1] and tiny.class_names == ("n01", "n02")
    assert tiny.test is not None and tiny.test.labels.tolist() == [1]
    assert tiny.source == (
        "image folders (jpeg, test split is the validation split, 2 of 200 classes, 2 of 100,000 training samples)"
    )


def test_cifar_binary_files(tmp_path: Path) -> None:
    root = tmp_path / "root" / "cifar-10-batches-bin"
    root.mkdir(parents=True)
    rows = np.concatenate([LABELS[:, None].astype(np.uint8), COLOUR.transpose(0, 3, 1, 2).reshape(20, -1)], axis=1)
    (root / "data_batch_1.bin").write_bytes(rows[:8].tobytes())
    (root / "data_batch_2.bin").write_bytes(rows[8:].tobytes())
    (root / "test_batch.bin").write_bytes(rows[:3].tobytes())
    cifar = opened("cifar10", tmp_path / "root")
    assert np.array_equal(cifar.train.inputs.numpy(), COLOUR.transpose(0, 3, 1, 2))
    assert np.array_equal(cifar.train.labels.numpy(), LABELS)
    (root / "data_batch_2.bin").write_bytes(rows[8:].tobytes()[:-1])
    with pytest.raises(InputError, match="not a multiple of 3073"):
        opened("cifar10", tmp_path / "root")


def test_pickled_cifar_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "root" / "cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "root" / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(InputError, match="pickled; polyfed does not load it"):
        opened("cifar10", tmp_path / "root")


def test_npz_in_both_layouts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    np.savez(root / "train.npz", x=GREY, y=LABELS)
    np.savez(root / "test.npz", x=GREY[:4] / 255.0, y=LABELS[:4])
    parts = opened("mnist", root)
    assert np.array_equal(parts.train.inputs[:, 0].numpy(), GREY) and parts.test is not None
    assert np.array_equal(parts.test.inputs[:, 0].numpy(), GREY[:4])
    np.savez(root / "mnist.npz", x_train=GREY, y_train=LABELS, x_test=GREY[:5], y_test=LABELS[:5])
    whole = opened("mnist", root)
    assert whole.test is not None and len(whole.test.labels) == 5
    np.savez(root / "mnist.npz", x_train=GREY)
    with pytest.raises(InputError, match=r"mnist\.npz has no array 'y_train'; it holds x_train"):
        opened("mnist", root)
    np.savez(root / "mnist.npz", x_train=GREY, y_train=np.array([object()] * 20))
    with pytest.raises(InputError, match=r"not a readable \.npz file of plain arrays"):
        opened("mnist", root)


def test_a_known_name_must_hold_what_is_known_of_it(tmp_path: Path) -> None:
    small = GREY[:, :8, :8]
    changes = {"train_images": idx_bytes(small), "test_images": idx_bytes(small[:6])}
    root = write_idx(tmp_path / "root", changes)
    with pytest.raises(InputError, match=r"is 'mnist'.* 1x28x28, but the files hold picture of shape 1x8x8"):
        opened("mnist", root)
    assert opened("scans", root).shape == (1, 8, 8)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "train.csv").write_text("a,b,label\n1,2,0\n3,4,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="the files hold numbers of shape 2; give data of your own another name"):
        opened("mnist", tmp_path / "table")


def test_the_hub_path_reads_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder laid out like a repository of the hub stands in for it: the same library call reads both."""
    import datasets

    from polyfed.data.catalogue import KNOWN
    from polyfed.data.hub import decode_hub

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    write_parquet(tmp_path / "repo" / "data" / "train-00000-of-00001.parquet", pictures_of(COLOUR), LABELS)
    write_parquet(tmp_path / "repo" / "data" / "test-00000-of-00001.parquet", pictures_of(COLOUR[:4]), LABELS[:4])
    known = replace(KNOWN["cifar10"], hub=str(tmp_path / "repo"))
    cifar = decode_hub(known, "nowhere", "anything")
    assert np.array_equal(cifar.train.inputs, COLOUR.transpose(0, 3, 1, 2)) and cifar.test is not None
    assert (
        np.array_equal(cifar.test.labels, LABELS[:4])
        and cifar.source == f"hub:{known.hub} (20 of 50,000 training samples)"
    )
