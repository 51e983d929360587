"""Local splits, matched test sets, balanced subsets and partition files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.data.dataset import balanced_limit
from polyfed.data.local_split import local_split
from polyfed.data.partition import Partition, make, matched_test, read, save
from polyfed.data.partition_file import holds
from polyfed.errors import InputError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_split_by_hand() -> None:
    """8 + 4 + 2 + 1 samples, a quarter: 14 / 4 = 3.5 rounds to 4; floors give 2, 1, 0, the remainder of 2 gives 1."""
    labels = np.array([0] * 8 + [1] * 4 + [2] * 2 + [3])
    train, test = local_split([np.arange(15)], labels, 0.25, rng())
    assert np.bincount(labels[test[0]], minlength=4).tolist() == [2, 1, 1, 0]
    assert np.bincount(labels[train[0]], minlength=4).tolist() == [6, 3, 1, 1]


def test_a_client_of_single_samples_still_tests_on_one() -> None:
    train, test = local_split([np.arange(3), np.array([3])], np.array([0, 1, 2, 0]), 0.25, rng())
    assert [len(indices) for indices in train] == [2, 1]
    assert [len(indices) for indices in test] == [1, 0]


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    fraction=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]),
    seed=st.integers(0, 1000),
)
def test_split_properties(sizes: list[int], fraction: float, seed: int) -> None:
    labels = rng(seed).integers(0, 5, size=sum(sizes))
    shares = np.split(rng(seed + 1).permutation(len(labels)), np.cumsum(sizes)[:-1])
    train, test = local_split(shares, labels, fraction, rng(seed))
    for share, kept, held in zip(shares, train, test, strict=True):
        assert np.array_equal(np.sort(np.concatenate([kept, held])), np.sort(share))
        assert len(kept) >= 1
        assert (len(held) >= 1) == (fraction > 0 and len(share) >= 2)
        total, out = np.bincount(labels[share], minlength=5), np.bincount(labels[held], minlength=5)
        if total.max() > 1:
            assert np.all(out[total == 1] == 0)
            assert np.all(out <= np.floor(fraction * total + 1e-6) + 1)
            assert np.all(out[total > 1] < total[total > 1])


def test_no_test_part_when_the_fraction_is_zero() -> None:
    partition = make(np.arange(20) % 2, 2, 4, {"scheme": "iid"}, test_fraction=0.0, rng=rng())
    assert [len(indices) for indices in partition.test] == [0] * 4
    assert [len(indices) for indices in partition.train] == [5] * 4


def test_validation_share_is_taken_from_the_whole() -> None:
    labels = np.repeat(np.arange(2), 100)
    partition = make(
        labels, 2, 2, {"scheme": "iid", "stratified": True}, test_fraction=0.2, rng=rng(), validation_fraction=0.1
    )
    assert [len(indices) for indices in partition.validation] == [10, 10]
    assert [len(indices) for indices in partition.test] == [20, 20]


def test_matched_test_by_hand() -> None:
    """Client 0 trains on all of class 0 and a quarter of class 1; no client has class 2."""
    train_labels = np.array([0, 0, 1, 1, 1, 1, 2])
    partition = Partition(train=(np.array([0, 1, 2]), np.array([3, 4, 5])), test=(np.array([]), np.array([])))
    test_labels = np.array([0] * 8 + [1] * 8 + [2] * 4)
    first, second = matched_test(partition, train_labels, test_labels, 3, rng())
    assert np.bincount(test_labels[first], minlength=3).tolist() == [8, 2, 0]
    assert np.bincount(test_labels[second], minlength=3).tolist() == [0, 6, 0]
    assert not set(first) & set(second)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6), limit=st.integers(1, 100), seed=st.integers(0, 99)
)
def test_balanced_limit_properties(counts: list[int], limit: int, seed: int) -> None:
    counts[0] += 1
    labels = rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    chosen = balanced_limit(labels, limit, rng(seed))
    assert len(chosen) == min(limit, len(labels))
    assert np.all(np.diff(chosen) > 0)
    taken = np.bincount(labels[chosen], minlength=len(counts))
    for count, number in zip(counts, taken, strict=True):
        assert number == count or number >= taken.max() - 1  # fewer than the others only if all are taken
    assert np.array_equal(chosen, balanced_limit(labels, limit, rng(seed)))


def test_balanced_limit_refuses_nothing() -> None:
    with pytest.raises(InputError, match=r"data\.limit is 0"):
        balanced_limit(np.zeros(5, dtype=np.int64), 0, rng())


def partition_of(seed: int) -> Partition:
    labels = np.repeat(np.arange(10), 60)
    return make(labels, 10, 4, {"scheme": "dirichlet", "alpha": 0.5}, test_fraction=0.25, rng=rng(seed))


def test_file_round_trip_and_equal_bytes_for_equal_seeds(tmp_path: Path) -> None:
    hashes = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        save(partition_of(seed), tmp_path / f"{name}.npz")
        hashes.append(hashlib.sha256((tmp_path / f"{name}.npz").read_bytes()).hexdigest())
    assert hashes[0] == hashes[1] != hashes[2]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "b.npz", "c.npz"]
    options = {"scheme": "file", "path": str(tmp_path / "a.npz")}
    back = make(np.zeros(600, dtype=np.int64), 10, 4, options, test_fraction=0.9, rng=rng())
    before = partition_of(1)
    assert all(np.array_equal(a, b) for a, b in zip(before.train + before.test, back.train + back.test, strict=True))
    assert back.notes == ()


def test_file_keeps_the_validation_part(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(10), 60)
    ratio = {"scheme": "ratio", "reading": "split"}
    partition = make(labels, 10, 10, ratio, test_fraction=0.25, rng=rng())
    save(partition, tmp_path / "p.npz")
    back = read(tmp_path / "p.npz", clients=10, samples=600)
    assert all(np.array_equal(a, b) for a, b in zip(partition.validation, back.validation, strict=True))


@pytest.mark.parametrize("clients", [3, 33_000])
def test_file_is_an_npz_of_any_number_of_arrays(tmp_path: Path, clients: int) -> None:
    """Zip files with more than 65,535 entries have a longer directory."""
    train, test = (np.arange(2 * clients).reshape(2, clients)[part] for part in (0, 1))
    partition = Partition(tuple(train[:, None]), tuple(test[:, None]))
    save(partition, tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as arrays:
        assert len(arrays.files) == 2 * clients
        assert arrays["train_0"].tolist() == [0] and arrays[f"test_{clients - 1}"].tolist() == [2 * clients - 1]
    assert holds(tmp_path / "p.npz", partition, samples=2 * clients)


def test_file_of_numpy_is_compared_by_its_arrays(tmp_path: Path) -> None:
    partition = Partition((np.array([0, 1]), np.array([2])), (np.array([3]), np.array([4])))
    train = {"train_0": np.array([0, 1]), "train_1": np.array([2])}
    for name, last in (("same", 4), ("other", 5)):
        arrays = {**train, "test_0": np.array([3]), "test_1": np.array([last])}
        np.savez(tmp_path / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    assert holds(tmp_path / "same.npz", partition, samples=6)
    assert not holds(tmp_path / "other.npz", partition, samples=6)


GOOD = {"train_0": [0, 1], "test_0": [2], "train_1": [3, 4], "test_1": []}


def test_file_may_share_samples_between_clients_but_says_so(tmp_path: Path) -> None:
    content = {name: np.array(value) for name, value in {**GOOD, "test_1": [2]}.items()}
    np.savez(tmp_path / "p.npz", allow_pickle=False, **content)
    assert "1 samples to more than one client" in read(tmp_path / "p.npz", clients=2, samples=5).notes[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_1": None, "test_1": None}, "is for 1 clients, but there are 2"),
        ({"train_2": [1], "test_2": []}, "is for 3 clients, but there are 2"),
        ({"test_1": None}, "has no array test_1"),
        ({"tset_1": [1]}, "has an array tset_1"),
        ({"train_0": [0, 5]}, "train_0 has index 5, but the training split has samples 0 to 4"),
        ({"train_0": [-1]}, "train_0 has index -1"),
        ({"train_0": []}, "train_0 is empty"),
        ({"train_0": [0, 0]}, "sample 0 is in train_0 twice"),
        ({"test_0": [1]}, "sample 1 is in train_0 and test_0"),
        ({"train_0": [0.5]}, "train_0 is a float64 array"),
        ({"train_0": [[0, 1]]}, "shape"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    content = {name: np.array(value) for name, value in {**GOOD, **change}.items() if value is not None}
    np.savez(tmp_path / "p.npz", allow_pickle=False, **content)
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / "p.npz", clients=2, samples=5)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04half"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"p\.npz is not a readable partition file"):
        read(tmp_path / "p.npz", clients=2, samples=5)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    save(partition_of(1), tmp_path / "p.npz")
    whole = (tmp_path / "p.npz").read_bytes()
    (tmp_path / "p.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not a readable partition file"):
        read(tmp_path / "p.npz", clients=4, samples=600)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read(tmp_path / "none.npz", clients=2, samples=5)
