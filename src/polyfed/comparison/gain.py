"""Differences between runs and the runs of a baseline, with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from polyfed.comparison.measures import Measure
from polyfed.comparison.runs import Run

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Mean difference to the baseline over the `n` common seeds, with a 95 % confidence interval.

    The interval is a t interval over the common seeds. With one common seed it is a t interval over the clients,
    paired by client: `over` says which, and it is None if there is no interval.
    """

    mean: float
    low: float | None
    high: float | None
    n: int  # common seeds
    over: Literal["seeds", "clients"] | None = None


def difference(members: Sequence[Run], baseline: Sequence[Run], measure: Measure) -> Difference | None:
    """Return the difference between two groups of runs, or None if they have no seed in common."""
    own, other = _by_seed(members, measure), _by_seed(baseline, measure)
    over_seeds = paired_difference(own, other)
    if over_seeds is None or over_seeds.over == "seeds":
        return over_seeds
    (seed,) = own.keys() & other.keys()
    clients = client_differences(_with_seed(members, seed), _with_seed(baseline, seed), measure)
    if len(clients) < 2:
        return over_seeds
    half = half_width(list(clients.values()))
    return Difference(over_seeds.mean, over_seeds.mean - half, over_seeds.mean + half, 1, "clients")


def paired_difference(values: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """Return the mean difference of values by seed, or None without a common seed. One seed gives no interval."""
    gaps = [values[seed] - others[seed] for seed in sorted(values.keys() & others.keys())]
    if not gaps:
        return None
    mean = statistics.fmean(gaps)
    if len(gaps) == 1:
        return Difference(mean, None, None, 1)
    half = half_width(gaps)
    return Difference(mean, mean - half, mean + half, len(gaps), "seeds")


def client_differences(members: Sequence[Run], baseline: Sequence[Run], measure: Measure) -> dict[int, float]:
    """Return the difference of every client, by position: the mean over the seeds that both groups have."""
    own, other = _clients_by_seed(members, measure), _clients_by_seed(baseline, measure)
    gaps: dict[int, list[float]] = {}
    for seed in own.keys() & other.keys():
        if len(own[seed]) != len(other[seed]):
            continue  # other clients
        for position, (one, base) in enumerate(zip(own[seed], other[seed], strict=True)):
            if one is not None and base is not None:
                gaps.setdefault(position, []).append(one - base)
    return {position: statistics.fmean(values) for position, values in sorted(gaps.items())}


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the t interval of a mean. It needs two values."""
    from scipy.special import stdtrit  # scipy.stats takes seconds to import

    n = len(values)
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(n)


def few_seeds_notes(differences: Mapping[str, Mapping[str, Difference | None]], baseline: str | None) -> list[str]:
    """Return warnings about differences over fewer than three common seeds, by group."""
    few: dict[tuple[int, bool], list[str]] = {}
    for group, by_measure in differences.items():
        # a measure may be missing in all runs: use the one with the most common seeds
        found = [gap for gap in by_measure.values() if gap is not None]
        n = max((gap.n for gap in found), default=0)
        if by_measure and n < 3:
            few.setdefault((n, any(gap.over == "clients" for gap in found)), []).append(group)
    consequences = {
        (0, False): "no seed in common with it, so there is no difference",
        (1, False): "one seed in common with it, so there is no interval; run at least 3 seeds",
        (1, True): "one seed in common with it, so the interval is over clients; run at least 3 seeds",
        (2, False): "two seeds in common with it, so the interval is very wide; run at least 3 seeds",
    }
    notes = []
    for key, names in sorted(few.items()):
        listed = ", ".join(f"'{name}'" for name in names)
        notes.append(f"baseline '{baseline}': {listed} {'has' if len(names) == 1 else 'have'} {consequences[key]}")
    return notes


def _with_seed(members: Sequence[Run], seed: int) -> list[Run]:
    return [run for run in members if run.seed == seed]


def _by_seed(members: Sequence[Run], measure: Measure) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in members:
        value = measure.read(run.result)
        if value is not None:
            values.setdefault(run.seed, []).append(value)
    return {seed: statistics.fmean(repeated) for seed, repeated in values.items()}


def _clients_by_seed(members: Sequence[Run], measure: Measure) -> dict[int, Sequence[float | None]]:
    return {run.seed: clients for run in members if (clients := measure.read_clients(run.result))}
