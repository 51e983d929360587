"""`data.validation`: training samples that replace the test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.config import parse
from polyfed.data.dataset import from_arrays
from polyfed.deploy.agreement import agreed_data
from polyfed.errors import InputError
from polyfed.federation.simulation import SimulatedFederation, build_federation


def federation(**data: Any) -> SimulatedFederation:
    return build_federation(parse({"method": "local", "clients": 4, "data": {"limit": 400, **data}}))


def test_validation_samples_come_from_the_training_samples_of_the_same_partition() -> None:
    plain, tuning = federation().partition, federation(validation=0.2).partition
    for train, rest, validation in zip(plain.train, tuning.train, tuning.test, strict=True):
        assert len(validation) == round(0.2 * len(train))
        assert sorted([*rest, *validation]) == sorted(train)
    held_out = np.concatenate(plain.test)
    assert not np.isin(np.concatenate([*tuning.train, *tuning.test]), held_out).any()
    assert "validation" in tuning.notes[-1]


@pytest.mark.parametrize("more", [{}, {"personal_test": "matched"}, {"test_fraction": 0.0}])
def test_all_test_data_is_replaced(more: dict[str, Any]) -> None:
    tuning = federation(validation=0.3, **more)
    chosen = np.sort(np.concatenate(tuning.partition.test))
    assert tuning.global_test is not None
    assert torch.equal(tuning.global_test.inputs, tuning.dataset.train.inputs[torch.from_numpy(chosen)])
    client = tuning.make_client("0")
    assert torch.equal(client.test.labels, tuning.dataset.train.labels[torch.from_numpy(tuning.partition.test[0])])


def test_the_test_limit_applies_to_the_validation_samples() -> None:
    tuning = federation(validation=0.3, test_limit=20)
    assert tuning.global_test is not None and len(tuning.global_test) == 20


def test_other_seeds_hold_out_other_samples_and_no_validation_is_the_default() -> None:
    settings = {"method": "local", "clients": 1, "data": {"validation": 0.2, "partition": {"scheme": "iid"}}}
    first, second = (build_federation(parse({**settings, "seed": seed})).partition.test[0] for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert (
        parse({"data": {"validation": 0}}).hash() == parse({}).hash() != parse({"data": {"validation": 0.1}}).hash()
    )


def test_workers_measure_on_the_validation_samples(tmp_path: Path) -> None:
    tuning = federation(validation=0.2)
    rebuilt = SimulatedFederation.from_description(tuning.describe_for_workers(tmp_path))
    assert tuning.global_test is not None and rebuilt.global_test is not None
    assert torch.equal(tuning.global_test.inputs, rebuilt.global_test.inputs)


def test_data_without_a_test_split_has_no_common_validation_set(tmp_path: Path) -> None:
    x, y = np.zeros((40, 1, 4, 4), dtype=np.uint8), np.arange(40) % 2
    data = from_arrays("mine", x, y, cache=tmp_path)
    config = parse({"method": "local", "clients": 2, "data": {"validation": 0.2, "partition": {"scheme": "iid"}}})
    tuning = build_federation(config, data=data)
    assert tuning.global_test is None and [len(part) for part in tuning.partition.test] == [3, 3]


def test_wrong_validation_fractions_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.validation"):
        parse({"data": {"validation": 1.0}})
    single = from_arrays("mine", np.zeros((2, 1, 4, 4), dtype=np.uint8), np.array([0, 1]), cache=tmp_path)
    config = parse({"method": "local", "clients": 2, "data": {"validation": 0.2, "partition": {"scheme": "iid"}}})
    with pytest.raises(InputError, match="no client has two training samples"):
        build_federation(config, data=single)
    sites = {"dataset": "sites", "shape": [1, 8, 8], "class_names": ["a", "b"], "validation": 0.2}
    with pytest.raises(InputError, match=r"data\.validation is 0\.2, but it applies to simulations only"):
        agreed_data(parse({"data": sites}))
