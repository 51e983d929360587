"""The runs of a paper's tables: their configs, and the run folders that they have or will get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyfed.comparison import Run
from polyfed.config import Config, parse
from polyfed.config.early_checks import check_names
from polyfed.config.loading import apply_overrides, apply_settings, changed_settings, override_text, read_source
from polyfed.config.sweep import SweepRun, existing_runs, plan_run
from polyfed.errors import InputError
from polyfed.papers.paper_file import Paper, Scale
from polyfed.runs.folder import RunFolder

Cell = tuple[str, str]  # setting and row


@dataclass(frozen=True)
class GridRun:
    """A run of the grid, with the cells of tables that show it."""

    run: SweepRun
    cells: tuple[Cell, ...]

    @property
    def seed(self) -> int:
        return self.run.config.seed


def cells_of(paper: Paper, scale: Scale, tables: Sequence[str]) -> list[Cell]:
    """Return the settings and rows of some tables at a scale, each once."""
    return list(
        dict.fromkeys(
            (setting, row)
            for table in tables
            for setting in paper.settings_of(table, scale)
            for row in paper.rows_of(table, setting, scale)
        )
    )


def cell_config(paper: Paper, scale: Scale, cell: Cell, more: Sequence[str] = (), root: Path | None = None) -> Config:
    """Return the config of a cell with seed 0. `more` are further overrides, and `root` is the folder of datasets."""
    _, raw = _raw_config(paper, scale, cell)
    config = parse({**apply_overrides(raw, more), "name": None, "seed": 0}, ", ".join(cell))
    return config if root is None else _with_root(config, str(root.expanduser().resolve()))


def command_overrides(paper: Paper, scale: Scale, cell: Cell) -> tuple[str, list[str]]:
    """Return the preset and the overrides with which `polyfed run` runs a cell."""
    preset, raw = _raw_config(paper, scale, cell)
    return preset, [override_text(key, value) for key, value in changed_settings(read_source(preset), raw).items()]


def _raw_config(paper: Paper, scale: Scale, cell: Cell) -> tuple[str, dict[str, Any]]:
    """Return the preset of a cell, and its raw config with all overrides."""
    setting, row = cell
    scaled = paper.settings[setting].at(scale)
    if scaled is None:
        raise InputError(f"the setting '{setting}' does not exist at the scale '{scale}'")
    raw = apply_settings(read_source(scaled.preset), scaled.set)
    for name in paper.ancestors(row):
        if (other := paper.rows[name].with_method) is not None:
            raw["method"] = {**raw["method"], "name": other}
        for layer in paper.layers(setting, name, scale):
            raw = apply_settings(raw, layer)
    return scaled.preset, raw


def plan_grid(
    paper: Paper,
    scale: Scale,
    tables: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    more: Sequence[str] = (),
    root: Path | None = None,
) -> list[GridRun]:
    """Return the runs of some tables, all runs of the first seed first. Cells with equal configs share a run.

    A run that is in the folder `out` keeps its folder. Raise `InputError` for a wrong config; data is not checked.
    """
    cells: dict[str, list[Cell]] = {}  # by the identity of their config
    configs: dict[str, Config] = {}
    for cell in cells_of(paper, scale, tables):
        config = cell_config(paper, scale, cell, more, root)
        check_names(config)
        cells.setdefault(identity(config), []).append(cell)
        configs.setdefault(identity(config), config)
    existing = existing_runs(out, identity)
    runs = []
    for seed in seeds:
        for key, members in cells.items():
            config = configs[key].model_copy(update={"seed": seed})
            named = next((cell for cell in members if paper.rows[cell[1]].moment is None), members[0])
            run = plan_run(config, f"{'-'.join(named)}-s{seed}", out, existing, identity)
            runs.append(GridRun(_with_recorded_root(run), tuple(members)))
    return runs


def identity(config: Config) -> str:
    """Return a digest of a config that does not depend on the folder of its dataset."""
    return _with_root(config, None).hash()


def _with_recorded_root(run: SweepRun) -> SweepRun:
    """Return a run with the dataset folder that its run folder records, with which it can be resumed."""
    folder = RunFolder(run.folder)
    if not folder.exists():
        return run
    return replace(run, config=_with_root(run.config, folder.config().get("data", {}).get("root")))


def _with_root(config: Config, root: str | None) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"root": root})})


def find_runs(grid: Sequence[GridRun]) -> dict[Cell, list[Run]]:
    """Return the finished runs of a grid by cell, in the order of their seeds."""
    runs: dict[Cell, list[Run]] = {}
    for planned in sorted(grid, key=lambda one: one.seed):
        folder = RunFolder(planned.run.folder)
        result = folder.result() if folder.exists() else None
        if result is not None:
            run = Run(str(folder.path), result, folder.config())
            for cell in planned.cells:
                runs.setdefault(cell, []).append(run)
    return runs
