"""The CPU grid of every paper: each setting runs two rounds on a few samples, and other rows pass the check."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from polyfed import api
from polyfed.config import Config, load_config
from polyfed.core import rng
from polyfed.data.catalogue import KNOWN
from polyfed.data.sensor_files import CHANNELS
from polyfed.federation.data_stand_in import federation_without_data
from polyfed.federation.simulation import build_federation
from polyfed.papers import Paper, cell_config, load_paper, paper_names
from polyfed.papers.grid import Cell, cells_of

SAMPLES, TESTS, CLIENTS = 100, 10, 5
# What the runs cut: rounds, clients, samples, steps, and the work of a server. Method, options, architectures,
# partition scheme, splitting and filter are those of the grid.
CUT = [
    "rounds=2",
    f"clients={CLIENTS}",
    "participation=1.0",
    "train.epochs=1",
    "train.steps=1",
    "train.batch_size=8",
    "evaluate.every=2",
    f"data.limit={SAMPLES}",
    f"data.test_limit={TESTS}",
    "engine.name=serial",
    "checkpoint.seconds=1000",
]
CUT_METHODS = {
    "dffke": [
        "method.tau=0.01",  # reached at once
        *(f"method.{key}=1" for key in ("max_local_epochs", "docking_steps", "decoder_epochs", "exchange_epochs")),
        *(f"method.{key}=4" for key in ("width", "decoder_channels")),
        "method.least_steps=0",
    ],
    "fedvtc": ["method.samples_per_class=1", "method.finetune_epochs=1"],
    "fedlatent": ["method.samples_per_class=1", "method.min_class_count=1"],
    "fedl2g": ["method.quiz=2", "method.warmup=1"],
}
BUNDLED = {"breast_cancer", "digits", "wine"}  # with scikit-learn
CUT_PARTITIONS = {"dirichlet": ["data.partition.alpha=10.0", "data.partition.min_size=4"]}


paper_of = cache(load_paper)


@cache
def cut(name: str, cell: Cell) -> Config:
    """Return the config of a cell, cut to a run of less than a second."""
    paper = paper_of(name)
    full = cell_config(paper, "cpu", cell)
    method, scheme = str(full.method["name"]), str(full.data.partition["scheme"])
    smaller = [option for start, options in CUT_METHODS.items() if method.startswith(start) for option in options]
    return cell_config(paper, "cpu", cell, [*CUT, *smaller, *CUT_PARTITIONS.get(scheme, ())])


def all_cells(paper: Paper) -> list[Cell]:
    return cells_of(paper, "cpu", list(paper.tables))


def runs() -> dict[str, tuple[str, Cell]]:
    """Return the runs: the paper's method and local training in every setting that is still different when cut."""
    chosen: dict[str, tuple[str, Cell]] = {}
    for name in paper_names():
        paper = paper_of(name)
        for cell in all_cells(paper):
            if cell[1] in (paper.method, "local"):
                chosen.setdefault(cut(name, cell).hash(), (name, cell))
    return chosen


RUNS = runs()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few random samples of every dataset, in files as users bring them."""
    root = tmp_path_factory.mktemp("data")
    stream = rng.numpy_generator(0, "small data")
    for name in {cut(*run).data.dataset for run in RUNS.values()} - BUNDLED:
        (root / name).mkdir()
        if name == "uci_har":
            write_series(root / name, stream)
            continue
        for split, count in (("train", SAMPLES), ("test", TESTS)):
            images = stream.integers(0, 256, (count, *(KNOWN[name].shape or ())), dtype=np.uint8)
            np.savez(root / name / f"{split}.npz", x=images, y=np.arange(count) % 10)
    return root


def write_series(folder: Path, stream: np.random.Generator) -> None:
    """Write files of UCI HAR with one person per client."""
    for split, count in (("train", SAMPLES), ("test", TESTS)):
        signals = folder / split / "Inertial Signals"
        signals.mkdir(parents=True)
        for channel in CHANNELS:
            np.savetxt(signals / f"{channel}_{split}.txt", stream.normal(size=(count, 128)), fmt="%.2f")
        np.savetxt(folder / split / f"y_{split}.txt", np.arange(count) % 6 + 1, fmt="%d")
        np.savetxt(folder / split / f"subject_{split}.txt", np.arange(count) % CLIENTS, fmt="%d")


def with_files(config: Config, files: Path) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"root": str(files)})})


@pytest.mark.parametrize(("name", "cell"), RUNS.values())
def test_two_rounds_of_every_setting(name: str, cell: Cell, files: Path, tmp_path: Path) -> None:
    config = cut(name, cell)
    result = api.run_config(with_files(config, files), out=tmp_path / "run")
    assert (result["rounds"], result["clients"], result["failures"]) == (2, CLIENTS, [])
    paper = paper_of(name)
    for table in paper.tables.values():  # what the tables show of this setting was measured
        if cell[0] in table.settings and table.measure.of != "traffic":
            assert result["accuracy"][table.measure.of] is not None


def test_the_presets_of_all_settings_pass_the_check() -> None:
    # test_published_presets.py checks those of published size
    settings = [setting.cpu for name in paper_names() for setting in paper_of(name).settings.values()]
    for preset in {scaled.preset for scaled in settings if scaled is not None}:
        federation = federation_without_data(load_config(preset))
        federation.check(federation.profiles())


@pytest.mark.parametrize("name", paper_names())
def test_all_other_rows_pass_the_check(name: str, files: Path) -> None:
    first_settings = {row: (setting, row) for setting, row in reversed(all_cells(paper_of(name)))}
    for cell in first_settings.values():
        config = cut(name, cell)
        if config.hash() not in RUNS:
            federation = build_federation(with_files(config, files))
            federation.check(federation.profiles())
