"""Datasets with merged splits, and stand-ins for datasets that are not here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyfed.config import parse
from polyfed.data.catalogue import KNOWN
from polyfed.data.dataset import from_arrays
from polyfed.data.merged_splits import merge_test
from polyfed.data.stand_in import SOURCE, stand_in
from polyfed.errors import InputError
from polyfed.federation.data_stand_in import federation_without_data
from polyfed.federation.simulation import build_federation


def test_training_samples_come_first_and_there_is_no_test_split(tmp_path: Path) -> None:
    x = np.arange(12 * 4, dtype=np.uint8).reshape(12, 1, 2, 2)
    y = np.arange(12) % 3
    data = from_arrays("mine", x[:8], y[:8], x[8:], y[8:], cache=tmp_path)
    merged = merge_test(data)
    assert merged.test is None and merged.source == "arrays, splits merged"
    assert np.array_equal(merged.train.inputs.numpy(), x) and np.array_equal(merged.train.labels.numpy(), y)
    assert merge_test(data).folder == merged.folder
    with pytest.raises(InputError, match="no test split"):
        merge_test(merged)


def test_clients_share_all_samples_of_a_merged_dataset() -> None:
    settings = {"method": "local", "clients": 4, "data": {"merge_test": True, "partition": {"scheme": "iid"}}}
    federation = build_federation(parse(settings))
    held = np.concatenate([*federation.partition.train, *federation.partition.test])
    assert sorted(held.tolist()) == list(range(1438 + 359))
    assert federation.global_test is None


def test_a_stand_in_has_the_published_size_and_little_memory() -> None:
    data = stand_in(KNOWN["tiny_imagenet"])
    assert (len(data.train.labels), data.shape, data.classes) == (100_000, (3, 64, 64), 200)
    assert data.test is not None and len(data.test.labels) == 10_000
    assert data.train.inputs.untyped_storage().nbytes() == 3 * 64 * 64
    assert data.train.labels.bincount().tolist() == [500] * 200
    assert len(stand_in(KNOWN["cifar10"], merged=True).train.labels) == 60_000
    with pytest.raises(InputError, match="no published size"):
        stand_in(KNOWN["shakespeare"])


def test_data_that_is_here_is_not_replaced() -> None:
    assert federation_without_data(parse({"method": "local"})).dataset.source != SOURCE


def test_a_stand_in_has_the_column_of_the_partition() -> None:
    partition = {"scheme": "column", "column": "subject"}
    config = parse({"method": "local", "data": {"dataset": "uci_har", "partition": partition}, "clients": 21})
    federation = federation_without_data(config)
    assert federation.dataset.source == SOURCE
    assert sum(federation.num_samples(k) for k in range(21)) > 5000  # 7,352 training samples without local tests
