"""Methods on tables, series and text: every method runs on them, or refuses them in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from tests import small
from tests.tiers import always_if

from polyfed import api, catalogue
from polyfed.data.dataset import Dataset, from_arrays
from polyfed.errors import InputError

CLASSES, SAMPLES = 3, 90
METHODS = [name for name in catalogue.methods() if name != "fedktl"]  # fedktl is created with a user's generator only
FIELDS: dict[str, dict[str, object]] = {
    "ccvr": {"virtual": 30, "epochs": 2},
    "dffke": small.DFFKE,
    "fedgen": {"generator_steps": 5, "hidden": 32},
    "fedl2g": {"warmup": 2},
    "fedlatent": {"samples_per_class": 6},
    "fedtgp": {"server_epochs": 3},
}
REFUSALS = {
    "inclusivefl": "no stages or blocks, so it cannot be sliced by depth",
    "scalefl": "needs models with early exits",
}
GROUPS = {"table": "tabular4", "series": "series4", "text": "text4"}


def dataset(kind: str, cache: Path) -> Dataset:
    """Return samples whose class shifts their values."""
    draw = np.random.Generator(np.random.PCG64(7))
    labels = np.arange(SAMPLES) % CLASSES
    if kind == "text":
        tokens = draw.integers(1, 10, (SAMPLES, 12)) + 10 * labels[:, None]
        return from_arrays(kind, tokens, labels, tokens[:30], labels[:30], vocabulary=40, cache=cache)
    shape = {"table": (6,), "series": (2, 16)}[kind]
    values = draw.normal(size=(SAMPLES, *shape)) + labels.reshape(-1, *(1 for _ in shape))
    return from_arrays(kind, values, labels, values[:30], labels[:30], cache=cache)


def pairs() -> list[ParameterSet]:
    """Pair all methods with all kinds of samples. Without --all-methods, each method runs on one of them."""
    kinds = list(GROUPS)
    return [
        pytest.param(method, kind, marks=always_if(number % len(kinds) == place))
        for number, method in enumerate(METHODS)
        for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(("method", "kind"), pairs())
def test_a_method_runs_or_refuses(method: str, kind: str, tmp_path: Path) -> None:
    needs = catalogue.load(method).needs
    first = {"table": "tiny-table-mlp", "series": "tiny-series-cnn", "text": "tiny-text-bag"}[kind]
    one_architecture = needs.same_architecture or needs.sub_models
    settings: dict[str, Any] = {
        "method": {"name": method, **FIELDS.get(method, {})},
        "models": {"group": [first] if one_architecture else GROUPS[kind]},
        "data": {"dataset": kind, "partition": {"scheme": "iid"}},
        "clients": 4,
        "rounds": 2,
        "train": {"batch_size": 8, "lr": 0.05},
        "engine": {"name": "serial"},
    }
    data = dataset(kind, tmp_path / "cache")
    if method in REFUSALS:
        with pytest.raises(InputError, match=REFUSALS[method]):
            api.run(settings, data=data, out=tmp_path / "run")
        return
    refusal = "pictures, but" if needs.images else "numbers .*, but" if needs.numbers and kind == "text" else None
    if refusal is not None:
        with pytest.raises(InputError, match=f"needs samples that are {refusal} clients 0, 1, 2, 3 have samples"):
            api.run(settings, data=data, out=tmp_path / "run")
        return
    result = api.run(settings, data=data, out=tmp_path / "run")
    assert result["failures"] == []
    assert all(value is not None for value in result["accuracy"]["global"]["by_client"])


def test_local_training_learns_each_modality(tmp_path: Path) -> None:
    for kind, group in GROUPS.items():
        result = api.run(
            {
                "method": {"name": "local"},
                "models": {"group": group},
                "data": {"partition": {"scheme": "iid"}},
                "clients": 4,
                "rounds": 5,
            },
            data=dataset(kind, tmp_path / "cache"),
            train={"batch_size": 8, "epochs": 5, "optimizer": "adam", "lr": 0.01},
            engine={"name": "serial"},
            out=tmp_path / kind,
        )
        assert min(result["accuracy"]["global"]["by_client"]) > 1 / CLASSES + 0.1
