"""Template of an installable package with a method, a model and a dataset, for `polyfed new package`.

The method comes from `method_template`.
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@NAME@"
version = "0.1.0"
description = "A method, a model and a dataset for polyfed."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["polyfed"]

# polyfed finds these in every environment in which the package is installed.
[project.entry-points."polyfed.methods"]
@NAME@ = "@MODULE@.method"

[project.entry-points."polyfed.models"]
"@NAME@-net" = "@MODULE@.models:Net"

[project.entry-points."polyfed.datasets"]
"@NAME@-data" = "@MODULE@.data:load"

[tool.setuptools.packages.find]
where = ["src"]
"""

README = """\
# @NAME@

A method, a model and a dataset for polyfed.

```bash
pip install -e .
polyfed run quickstart method=@NAME@
polyfed run quickstart data.dataset=@NAME@-data 'models.group=[@NAME@-net]' method=@NAME@
pytest
```
"""

INIT = '''\
"""@NAME@: a method, a model and a dataset for polyfed."""
'''

MODELS = '''\
"""The model `@NAME@-net`."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Net(nn.Module):
    """A small network for samples of any shape. Its last layer is a Linear with one output per class."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU())
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits
'''

DATA = '''\
"""The dataset `@NAME@-data`."""

from __future__ import annotations

from typing import Any

import numpy as np


def load() -> tuple[Any, Any, Any, Any]:
    """Return training inputs, training labels, test inputs and test labels. Replace this by your own data."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8))
    labels = rng.integers(3, size=600)
    inputs = (centres[labels] + rng.normal(size=(600, 8))).astype(np.float32)
    return inputs[:500], labels[:500], inputs[500:], labels[500:]
'''

TEST = '''\
"""The method passes polyfed's battery, and the model and the dataset train."""

from __future__ import annotations

from pathlib import Path

import polyfed
import pytest
from @MODULE@.method import @CLASS@
from polyfed.testing import checks, run_check


@pytest.mark.parametrize("check", checks())
def test_battery(check: str) -> None:
    run_check(check, @CLASS@)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_model_and_dataset_by_their_names(engine: str, tmp_path: Path) -> None:
    result = polyfed.run(
        data={"dataset": "@NAME@-data"},
        models=["@NAME@-net"],
        method="@NAME@",
        clients=4,
        rounds=1,
        engine={"name": engine},
        out=tmp_path / "run",
    )
    assert result["failures"] == []
'''
