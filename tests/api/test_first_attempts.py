"""What a newcomer tries with data and models of their own: each attempt works, or is refused with one sentence.

The table "What you can try" in docs/data.md says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor, nn

import polyfed
from polyfed.errors import InputError
from polyfed.runs.records import Result
from polyfed.trained.run_models import RunModels

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4))
Y = np.arange(60) % 3
SMALL: dict[str, Any] = {"method": "local", "rounds": 1, "clients": 2, "engine": {"name": "serial"}}
IID = {"scheme": "iid"}


def arrays(x: Any, y: Any, **keys: Any) -> dict[str, Any]:
    return {"data": {"train": (x, y), "partition": IID, **keys}}


def csv(folder: Path, rows: list[str], **keys: Any) -> dict[str, Any]:
    (folder / "ward").mkdir()
    (folder / "ward" / "patients.csv").write_text("age,dose,hospital,outcome\n" + "\n".join(rows) + "\n")
    data = {"dataset": "ward", "root": str(folder / "ward"), "label": "outcome", "partition": IID, **keys}
    return {"data": data, "models": "tabular4"}


def patients(folder: Path, **keys: Any) -> dict[str, Any]:
    rows = [f"{20 + k},{k / 7:.3f},{('north', 'south')[k % 3 == 0]},{('well', 'ill')[k % 2]}" for k in range(30)]
    return csv(folder, rows, **keys)


def pictures(folder: Path, **keys: Any) -> dict[str, Any]:
    for k in range(12):
        place = folder / "scans" / "train" / ("a", "b")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8 + k, 9 + k), 20 * k, np.uint8)).save(place / f"{k}.png")
    return {"data": {"dataset": "scans", "root": str(folder / "scans"), "partition": IID, **keys}}


class ConvolutionHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(1, 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x[:, None])[:, :, 0]
        return out


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.out(x), x


def dataset(result: Result) -> Any:
    return RunModels(Path(str(result.folder))).federation.dataset


def sites_are_clients(result: Result) -> None:
    assert [(client.name, client.samples + client.test_samples) for client in result.clients] == [
        ("north", 20),
        ("south", 10),
    ]
    assert dataset(result).features == ("age", "dose")  # not the site


def floats_stay(result: Result) -> None:
    assert np.array_equal(dataset(result).train.inputs.numpy(), X.astype(np.float32))


def has_three_classes(result: Result) -> None:
    assert dataset(result).classes == 3


def missing_class_counts(result: Result) -> None:
    data = dataset(result)
    assert data.classes == 3 and set(data.train.labels.tolist()) == {0, 1}
    assert result["accuracy"]["global"]["final"] is not None


def names_are_kept(result: Result) -> None:
    assert dataset(result).class_names == ("healthy", "ill", "unclear")


def one_sample_is_held_out(result: Result) -> None:
    assert [(client.samples, client.test_samples) for client in result.clients] == [(1, 1), (1, 1)]


def all_sizes_are_scaled(result: Result) -> None:
    assert dataset(result).shape == (1, 16, 16)


Settings = Callable[[Path], dict[str, Any]]
WORKS: dict[str, tuple[Settings, Callable[[Result], None]]] = {
    "csv with a site column": (
        lambda folder: {
            **patients(folder, partition={"scheme": "column", "column": "hospital"}),
            "names": ["north", "south"],
        },
        sites_are_clients,
    ),
    "floats": (lambda folder: arrays(X, Y), floats_stay),
    "three classes": (lambda folder: arrays(X, Y), has_three_classes),
    "images of different sizes, with `data.resize`": (
        lambda folder: pictures(folder, resize=16),
        all_sizes_are_scaled,
    ),
    "a class that only the test set has": (
        lambda folder: arrays(X, Y % 2, test=(X[:9], np.full(9, 2))),
        missing_class_counts,
    ),
    "labels as strings": (
        lambda folder: arrays(X, np.array(["healthy", "ill", "unclear"])[Y]),
        names_are_kept,
    ),
    "one sample per class": (lambda folder: arrays(X[:4], np.arange(4)), one_sample_is_held_out),
}
REFUSED: dict[str, tuple[Settings, str]] = {
    "images of different sizes": (
        pictures,
        r"scans/train/\S+: the picture is 1x\d+x\d+, but the first one is 1x8x9; .*set data\.resize",
    ),
    "a missing value": (
        lambda folder: csv(folder, ["40,1.5,north,ill", "41,,north,well", "42,0.5,south,ill", "43,1,south,well"]),
        r"patients\.csv: column 'dose' has 1 missing values, the first in row 2; fill them in or drop the rows",
    ),
    "a model whose head is not Linear": (
        lambda folder: {**arrays(X, Y), "models": [ConvolutionHead()]},
        "ConvolutionHead has no Linear layer; end it with a Linear that has 3 outputs, one per class",
    ),
    "a model that returns a tuple": (
        lambda folder: {**arrays(X, Y), "models": [Pair()]},
        "Pair returns a tuple; return only the logits",
    ),
    "a model with a wrong number of outputs": (
        lambda folder: {**arrays(X, Y), "models": [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))]},
        "has no Linear layer with 3 outputs, one per class of the data; its last Linear, '2', has 5",
    ),
    "several labels per sample (multi-label)": (
        lambda folder: arrays(X, np.eye(3, dtype=int)[Y]),
        "labels have shape .*one label per sample",
    ),
    "numbers to predict (regression)": (
        lambda folder: arrays(X, X[:, 0]),
        "labels such as .* are not whole numbers; regression is not supported, labels must be classes",
    ),
}


@pytest.mark.parametrize("attempt", WORKS)
def test_it_works(attempt: str, tmp_path: Path) -> None:
    settings, check = WORKS[attempt]
    result = polyfed.run(out=tmp_path / "run", **{**SMALL, **settings(tmp_path)})
    assert result["failures"] == []
    check(result)


@pytest.mark.parametrize("attempt", REFUSED)
def test_it_is_refused_with_one_sentence(attempt: str, tmp_path: Path) -> None:
    settings, message = REFUSED[attempt]
    with pytest.raises(InputError, match=message) as refused:
        polyfed.run(out=tmp_path / "run", **{**SMALL, **settings(tmp_path)})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_the_documentation_has_the_same_table() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    section = page.partition("## What you can try\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (works|refused)\b", section, re.MULTILINE)
    assert dict(rows) == dict.fromkeys(WORKS, "works") | dict.fromkeys(REFUSED, "refused")
