"""Measure aggregation rules under attack: a fifth of the clients sends its update times -10, or times a million.

Every method runs on digits without an attack and with the plain mean, then under attack with every rule. The script
prints the table of docs/robust.md. Accuracies are those of the honest clients. The check of magnitudes
(`failures.max_ratio`) is off, because it would reject the million-fold replies before any rule sees them.

    python scripts/robust_sums.py                       # all methods, some minutes
    python scripts/robust_sums.py fedavg --rounds 5     # one method, fewer rounds
"""

from __future__ import annotations

import argparse
from typing import Any

from polyfed.config import Config, parse
from polyfed.errors import PolyfedError
from polyfed.federation.simulation import build_federation
from polyfed.testing.engine_wrappers import ScalingEngine
from polyfed.testing.rounds import run_on_serial

RULES = ("mean", "median", "trimmed-mean", "norm-clipped", "krum", "geometric-median")
ATTACKS = {"-10": -10.0, "1,000,000": 1e6}
ATTACKERS = ("2", "7", "11", "16")  # 4 of 20 clients, never a majority of the clients with one architecture
# The models, the accuracy that the method is for (of one common model, or of personal models), rounds and rate.
METHODS: dict[str, tuple[Any, str, int, float]] = {
    "fedavg": (["tiny-cnn"], "global", 15, 0.05),
    "heterofl": ("tiny-widths", "global", 15, 0.05),
    "fedproto": (["tiny-cnn"], "personal", 12, 0.02),
    "fedl2g": ("tiny4", "personal", 15, 0.05),
}
OPTIONS: dict[str, dict[str, Any]] = {"fedl2g": {"space": "logit"}}  # of methods, if not the defaults


def config_of(method: str, rule: str, rounds: int) -> Config:
    """Return the experiment of one method."""
    common: dict[str, Any] = {
        "method": {"name": method, **OPTIONS.get(method, {})},
        "aggregation": rule,
        "data": {"dataset": "digits", "partition": {"scheme": "dirichlet", "alpha": 1.0}},
        "models": {"group": METHODS[method][0]},
        "clients": 20,
        "rounds": rounds,
        "train": {"lr": METHODS[method][3]},
        "engine": {"name": "serial", "device": "cpu"},
    }
    return parse(common)


def accuracy(config: Config, factor: float) -> float | None:
    """Run an experiment and return the accuracy of the honest clients in percent. None: the run ended early."""
    federation = build_federation(config)
    roster = federation.profiles()
    federation.check_needs(roster)
    measure = METHODS[config.method["name"]][1]
    attack = ScalingEngine(frozenset(ATTACKERS if factor != 1 else ()), factor)
    try:
        server = federation.server(roster)
        outcome = run_on_serial(federation, server, wrap=attack, evaluate=True, evaluate_every=config.rounds)
    except PolyfedError:
        return None
    counts = [count for client, count in outcome.accuracy[measure].items() if client not in ATTACKERS]
    return 100 * sum(correct for correct, _ in counts) / sum(samples for _, samples in counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(METHODS), help="all if left out")
    parser.add_argument("--rounds", type=int, help="instead of the number that METHODS has")
    arguments = parser.parse_args()
    print(f"| method | factor | honest mean | {' | '.join(RULES)} |\n|---|---|---|{'---|' * len(RULES)}")
    for method in arguments.methods:
        rounds = arguments.rounds or METHODS[method][2]
        honest = accuracy(config_of(method, "mean", rounds), 1)
        for label, factor in ATTACKS.items():
            cells = [method, label, format_accuracy(honest)]
            for rule in RULES:
                try:
                    cells.append(format_accuracy(accuracy(config_of(method, rule, rounds), factor)))
                except PolyfedError:
                    cells.append("refused")
            print(f"| {' | '.join(cells)} |", flush=True)


def format_accuracy(value: float | None) -> str:
    return "run ended" if value is None else f"{value:.1f} %"


if __name__ == "__main__":
    main()
