"""Tune the methods of a paper on validation data, and write the chosen values into the paper's file.

    .venv/bin/python scripts/tune.py fedvtc [--table table1] [--setting mnist-0.1] [--rows local fedproto] [--budget full]

All rows of a table have the same rule and budget: `train.lr` from three values (`polyfed.config.tuning`), and with
`--budget full` then the one option that the method's paper tunes, from three values. Rows with `variant_of` use the values
of the other row. Runs are compared by the measure of the table after the last round, as the mean over seeds that no table
uses. The preset's value wins ties.

Finished runs are not repeated, so the script can be interrupted and started again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.config import Config
from polyfed.config.loading import override_text
from polyfed.config.sweep import parse_seeds
from polyfed.config.tuning import SEED, VALIDATION, best_value, learning_rates
from polyfed.papers.grid import cell_config, existing_runs, identity
from polyfed.papers.loading import FOLDER, read_paper, write_tuned
from polyfed.papers.measures import read_value
from polyfed.papers.paper_file import Overrides, Paper

# by method: the option that its paper tunes, with the default first
OPTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "ccvr": ("method.lr", (0.01, 0.001, 0.1)),
    "dffke": ("method.tau", (1.0, 0.98, 0.9)),
    "feddistill": ("method.guidance", (1.0, 0.1, 10.0)),
    "fedfree": ("method.k", (2, 1, 3)),
    "fedgen": ("method.guidance", (1.0, 0.1, 10.0)),
    "fedgh": ("method.server_lr", (0.01, 0.001, 0.1)),
    "fedl2g": ("method.server_lr", (0.1, 0.01, 1.0)),
    "fedprox": ("method.mu", (0.01, 0.001, 0.1)),
    "fedproto": ("method.guidance", (1.0, 0.1, 10.0)),
    "fedtgp": ("method.guidance", (10.0, 1.0, 100.0)),
    "fedvtc": ("method.matching", (0.1, 0.01, 1.0)),
    "fml": ("method.alpha", (0.5, 0.1, 0.9)),
    "pfedafm": ("method.lr_alpha", (0.01, 0.001, 0.1)),
}
FEATURE_RATES = ("method.server_lr", (100.0, 10.0, 500.0))  # of FedL2G if it guides features

Score = Callable[[Overrides], float]


def tuned_option(config: Config) -> tuple[str, Sequence[Any]] | None:
    """Return the option of a config's method that is tuned, with its values."""
    if config.method["name"] == "fedl2g" and config.method.get("space") != "logit":
        return FEATURE_RATES
    return OPTIONS.get(str(config.method["name"]))


def tune(config: Config, score: Score, *, full: bool) -> Overrides:
    """Choose the learning rate, then if `full` the option of the method. The first of the best values is chosen."""
    chosen: Overrides = {}
    option = tuned_option(config) if full else None
    axes: list[tuple[str, Sequence[Any]]] = [("train.lr", learning_rates(config.train.lr))]
    for key, values in [*axes, *([option] if option is not None else [])]:
        chosen[key] = best_value({value: score({**chosen, key: value}) for value in values})
    return chosen


def validation_score(paper: Paper, table: str, cell: tuple[str, str], seeds: Sequence[int], out: Path) -> Score:
    """Return a function that runs a cell with some values and returns its mean accuracy on validation data."""

    def score(values: Overrides) -> float:
        more = [override_text(key, value) for key, value in values.items()]
        more += [f"data.validation={VALIDATION}", "engine.name=serial"]
        config = cell_config(paper, "cpu", cell, more)
        name = "-".join([*cell, *(f"{key.rpartition('.')[2]}{value}" for key, value in values.items())])
        accuracies = []
        for seed in seeds:
            one = config.model_copy(update={"seed": seed})
            folder = existing_runs(out).get(identity(one), out / f"{name}-s{seed}")
            result = api.run_config(one, out=folder)
            accuracy = read_value(paper.tables[table].measure, paper.rows[cell[1]].moment, result)
            if accuracy is None:
                raise SystemExit(f"{folder} has no accuracy for {table}")
            accuracies.append(accuracy)
        mean = statistics.fmean(accuracies)
        print(f"{' '.join(cell)} {values}: {mean:.2f} %", flush=True)
        return mean

    return score


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("paper", help="name of a paper, or path of its file")
    arguments.add_argument("--table", help="table with the rows and the measure; default: the first one")
    arguments.add_argument("--setting", help="setting of the table; default: the first one at CPU scale")
    arguments.add_argument("--also", nargs="+", default=[], help="other settings with the same preset: same values")
    arguments.add_argument("--rows", nargs="+", help="default: all rows of the table that are no variants")
    arguments.add_argument("--budget", choices=("rate", "full"), default="rate", help="what is tuned")
    arguments.add_argument("--seeds", default=str(SEED), help="random seeds of the tuning runs")
    arguments.add_argument("--out", type=Path, default=Path("runs/tune"), help="folder of the run folders, in PAPER")
    given = arguments.parse_args()
    file = Path(given.paper) if given.paper.endswith(".yaml") else FOLDER / f"{given.paper}.yaml"
    paper = read_paper(file)
    table = given.table or next(iter(paper.tables))
    setting = given.setting or paper.settings_of(table, "cpu")[0]
    untuned = paper.model_copy(update={"tuned": {}})
    tuned = {name: dict(rows) for name, rows in paper.tuned.items()}
    for row in given.rows or paper.rows_of(table, setting, "cpu"):
        if paper.rows[row].variant_of is not None:
            continue
        cell = (setting, row)
        score = validation_score(untuned, table, cell, parse_seeds(given.seeds), given.out / file.stem)
        tuned.setdefault(setting, {})[row] = tune(
            cell_config(untuned, "cpu", cell), score, full=given.budget == "full"
        )
        print(f"{setting} {row}: chose {tuned[setting][row]}", flush=True)
        for other in given.also:
            tuned.setdefault(other, {})[row] = tuned[setting][row]
        write_tuned(file, tuned)


if __name__ == "__main__":
    main()
