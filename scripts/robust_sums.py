"""Measure aggregation rules under attack: 2 of 10 clients send their update times -10, or times a million.

Every method runs on digits without an attack and with the plain mean, then under attack with every rule, for every
seed. Accuracies are those of the honest clients. The check of magnitudes (`failures.max_ratio`) is off, because it
rejects million-fold replies before any rule sees them; the column "mean, check on" has the plain mean with it. Results
are appended to a file, and runs that it holds are not repeated.

    python scripts/robust_sums.py                       # all methods and seeds, about 20 minutes on one core
    python scripts/robust_sums.py fedavg --seeds 0      # one method, one seed
    python scripts/robust_sums.py --table               # print the tables of docs/robust.md from the file
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.config import Config, parse
from polyfed.errors import PolyfedError
from polyfed.federation.simulation import build_federation
from polyfed.testing.engine_wrappers import ScalingEngine
from polyfed.testing.rounds import run_on_serial

RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "median": {},
    "trimmed-mean": {},
    "norm-clipped": {},
    "krum": {},
    "krum, keep 8": {"name": "krum", "keep": 8},
    "geometric-median": {},
}
FACTORS = {-10: "-10", 1_000_000: "1,000,000"}
CHECKED = "mean, check on"  # the plain mean with the check of magnitudes, as in a run with default settings
MAX_RATIO = 10_000.0  # default of failures.max_ratio
ATTACKERS = ("2", "7")  # of clients 0 to 9: one of each size in HeteroFL
ENDED, REFUSED = "run ended", "refused"


@dataclass(frozen=True)
class Setting:
    """The experiment of one method: models, settings, and the accuracy that the method is for."""

    models: Sequence[str]
    measure: str  # "global": of one common model; "personal": of personal models
    rounds: int
    train: dict[str, Any] = field(default_factory=lambda: {"optimizer": "adam", "lr": 0.003})
    method: dict[str, Any] = field(default_factory=dict)


SETTINGS = {
    "fedavg": Setting(["tiny-cnn"], "global", 15),
    "heterofl": Setting(["tiny-cnn@0.5", "tiny-cnn"], "global", 20, method={"whole_accuracy": False}),
    "fedproto": Setting(["tiny-cnn"], "personal", 20),
    "fedl2g": Setting(["tiny-cnn", "tiny-mlp"], "personal", 15, method={"space": "logit"}),
}


@dataclass(frozen=True)
class Run:
    """One experiment. Factor 1 is the run without an attack."""

    method: str
    rule: str
    factor: int
    seed: int

    def config(self) -> Config:
        setting = SETTINGS[self.method]
        return parse(
            {
                "method": {"name": self.method, **setting.method},
                "aggregation": {"name": self.rule, **RULES[self.rule]} if self.rule != CHECKED else "mean",
                "data": {"dataset": "digits", "partition": {"scheme": "dirichlet", "alpha": 1.0}},
                "models": {"group": list(setting.models)},
                "clients": 10,
                "rounds": setting.rounds,
                "seed": self.seed,
                "train": setting.train,
                "engine": {"name": "serial", "device": "cpu"},
            }
        )

    def result(self) -> float | str:
        """Return the accuracy of the honest clients in percent, or why there is none."""
        try:
            federation = build_federation(self.config())
            roster = federation.profiles()
            federation.check_needs(roster)
        except PolyfedError:
            return REFUSED
        attack = ScalingEngine(frozenset(ATTACKERS if self.factor != 1 else ()), self.factor)
        rounds = SETTINGS[self.method].rounds
        max_ratio = MAX_RATIO if self.rule == CHECKED else None
        try:
            outcome = run_on_serial(
                federation,
                federation.server(roster),
                wrap=attack,
                evaluate=True,
                evaluate_every=rounds,
                max_ratio=max_ratio,
            )
        except PolyfedError:
            return ENDED
        accuracies = outcome.accuracy[SETTINGS[self.method].measure]
        counts = [count for client, count in accuracies.items() if client not in ATTACKERS]
        return 100 * sum(correct for correct, _ in counts) / sum(samples for _, samples in counts)


def runs_of(method: str, seeds: Sequence[int]) -> Iterator[Run]:
    """Yield all runs of one method."""
    for seed in seeds:
        yield Run(method, "mean", 1, seed)
        for factor in FACTORS:
            for rule in (*RULES, CHECKED):
                yield Run(method, rule, factor, seed)


def load(path: Path) -> dict[Run, float | str]:
    """Return the results in a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {Run(**row["run"]): row["result"] for row in map(json.loads, lines)}


def format_results(results: dict[int, float | str], honest: dict[int, float], seeds: Sequence[int]) -> str:
    """Format results by seed: the mean, and the mean difference from the runs of these seeds without an attack."""
    numbers = {seed: result for seed, result in results.items() if not isinstance(result, str) and seed in honest}
    if not results:
        return "not run"
    if not numbers:
        return str(next(iter(results.values())))
    mean = statistics.mean(numbers.values())
    difference = mean - statistics.mean(honest[seed] for seed in numbers)
    fewer = "" if len(numbers) == len(seeds) else f", {len(numbers)} of {len(seeds)} seeds"
    return f"{mean:.1f} % ({difference:+.1f}{fewer})"


def print_tables(methods: Sequence[str], seeds: Sequence[int], results: dict[Run, float | str]) -> None:
    columns = (*RULES, CHECKED)
    print(f"| method | factor | no attack | {' | '.join(columns)} |\n|---|---|---|{'---|' * len(columns)}")
    for method in methods:
        found = {seed: results.get(Run(method, "mean", 1, seed)) for seed in seeds}
        honest = {seed: value for seed, value in found.items() if isinstance(value, float)}
        for factor, label in FACTORS.items():
            cells = [method, label, f"{statistics.mean(honest.values()):.1f} %" if honest else "not run"]
            for rule in columns:
                by_seed = {
                    seed: results[run] for seed in seeds if (run := Run(method, rule, factor, seed)) in results
                }
                cells.append(format_results(by_seed, honest, seeds))
            print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(SETTINGS), help="all if left out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/robust/results.jsonl"), help="file of results")
    parser.add_argument("--table", action="store_true", help="print the tables without running anything")
    arguments = parser.parse_args()
    results = load(arguments.out)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for run in [] if arguments.table else [run for m in arguments.methods for run in runs_of(m, arguments.seeds)]:
        if run in results:
            continue
        results[run] = run.result()
        with arguments.out.open("a") as file:
            file.write(json.dumps({"run": vars(run), "result": results[run]}) + "\n")
        print(run, results[run], flush=True)
    print_tables(arguments.methods, arguments.seeds, results)


if __name__ == "__main__":
    main()
