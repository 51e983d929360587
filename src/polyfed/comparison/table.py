"""Compute a comparison: groups of runs, mean and standard deviation over seeds, differences to a baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfed.comparison import formats
from polyfed.comparison.runs import Run, Source, load_runs
from polyfed.errors import InputError, nearest
from polyfed.runs.config_text import UNSET, flatten, format_value
from polyfed.runs.records import Result

MIB = 1 << 20
CONFIDENCE = 0.95


def _accuracy(kind: str, which: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        measured = result.accuracy[kind]
        return None if measured is None else 100.0 * float(getattr(measured, which))

    return read


# numeric columns: how each is read from a result, in the unit of the table (per cent, MiB, seconds)
MEASURES: Mapping[str, Callable[[Result], float | None]] = {
    "personal_final": _accuracy("personal", "final"),
    "personal_best": _accuracy("personal", "best"),
    "global_final": _accuracy("global", "final"),
    "global_best": _accuracy("global", "best"),
    "mib_up": lambda result: result.upload_bytes / MIB,
    "mib_down": lambda result: result.download_bytes / MIB,
    "seconds": lambda result: float(result.seconds),
}
ACCURACIES = ("personal_final", "personal_best", "global_final", "global_best")
COMPARED = ("personal_final", "global_final")  # measures with differences to a baseline


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of some runs. The deviation of one run is None."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean difference to the baseline over the `n` common seeds, with a 95 % confidence interval.

    The interval is None for one common seed.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """A row of the comparison: the runs of one group."""

    group: Mapping[str, str]
    runs: int
    seeds: tuple[int, ...]
    values: Mapping[str, Spread | None]  # None: not measured
    best: frozenset[str] = frozenset()  # measures in which no comparable group has a higher mean
    differences: Mapping[str, Difference | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A table of runs. `str()` returns it as text, `to("md")` in another format."""

    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """A description of the columns."""
        parts = [
            "Accuracy in %: personal on each client's own held-out data, global on the common test set",
            "final = last round, best = best round, chosen on test data",
            "mean ± sample standard deviation over n runs",
        ]
        if self.baseline is not None:
            parts.append(f"Δ = mean difference to {self.baseline} over common seeds with 95 % t interval")
        return "; ".join(parts) + "."

    def to(self, format: str) -> str:
        """Return the comparison as table, csv, md, latex or html."""
        if format not in formats.FORMATS:
            raise InputError(f"there is no format '{format}'; {nearest(format, formats.FORMATS)}")
        return formats.FORMATS[format](self)

    def __str__(self) -> str:
        return self.to("table")

    def _repr_html_(self) -> str:
        return formats.html_table(self)


def compare(sources: Iterable[Source], *, by: str | Sequence[str] = (), baseline: str | None = None) -> Comparison:
    """Compare results or run folders, grouped by method and by the config keys `by`.

    `baseline` is a method, or a value of the first key if all runs have the same method. Each row then has its
    differences to the baseline over common seeds.
    """
    runs, skipped = load_runs(sources)
    return compare_runs(runs, by=by, baseline=baseline, notes=skipped)


def compare_runs(
    runs: Sequence[Run], *, by: str | Sequence[str] = (), baseline: str | None = None, notes: Sequence[str] = ()
) -> Comparison:
    """Compare finished runs that were already loaded."""
    keys = _keys(runs, [by] if isinstance(by, str) else list(by))
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(format_value(run.lookup(key)) for key in keys), []).append(run)
    ordered = dict(sorted(groups.items(), key=lambda item: [sort_key(part) for part in item[0]]))
    spreads = {group: _spreads(members) for group, members in ordered.items()}
    bests = _bests(keys, spreads)
    baselines = _baselines(keys, ordered, baseline)
    rows = [
        Row(
            group=dict(zip(keys, group, strict=True)),
            runs=len(members),
            seeds=tuple(sorted({run.seed for run in members})),
            values=spreads[group],
            best=frozenset(m for m, best in bests[group].items() if _has_mean(spreads[group][m], best)),
            differences=_differences(members, baselines[group]) if group in baselines else {},
        )
        for group, members in ordered.items()
    ]
    mixed = [note for group, members in ordered.items() if (note := _mixed_note(group, members))]
    return Comparison(keys, tuple(rows), baseline, (*notes, *mixed, *_few_seeds_notes(rows, baseline)))


def _keys(runs: Sequence[Run], by: list[str]) -> tuple[str, ...]:
    """Return the columns that define a group. Different methods are never averaged with each other."""
    for key in by:
        if all(run.lookup(key) is None for run in runs):
            known = {name for run in runs for name, _ in flatten(run.config)} | {"method"}
            raise InputError(f"no run has a setting called '{key}'; {nearest(key, known)}")
    several_methods = len({run.result.method for run in runs}) > 1
    return tuple(dict.fromkeys([*(["method"] if several_methods or not by else []), *by]))


def sort_key(text: str) -> tuple[int, float, str]:
    """Return a key that sorts numbers by value, before words."""
    try:
        number = float(text)
    except ValueError:
        return 1, 0.0, text
    return (0, number, text) if math.isfinite(number) else (1, 0.0, text)


def _spreads(members: Sequence[Run]) -> dict[str, Spread | None]:
    spreads: dict[str, Spread | None] = {}
    for measure, read in MEASURES.items():
        values = [value for run in members if (value := read(run.result)) is not None]
        std = statistics.stdev(values) if len(values) > 1 else None
        spreads[measure] = Spread(statistics.fmean(values), std, len(values)) if values else None
    return spreads


def _bests(
    keys: tuple[str, ...], spreads: Mapping[tuple[str, ...], Mapping[str, Spread | None]]
) -> dict[tuple[str, ...], dict[str, float]]:
    """Return for every group the highest mean of each accuracy among comparable groups.

    With several methods, comparable groups agree in all other settings; with one method, all groups are comparable.
    A group without comparable groups has no best values.
    """
    column = keys.index("method") if "method" in keys else None

    def setting(group: tuple[str, ...]) -> tuple[str, ...]:
        return () if column is None else (*group[:column], *group[column + 1 :])

    bests: dict[tuple[str, ...], dict[str, float]] = {}
    for group in spreads:
        comparable = [values for other, values in spreads.items() if setting(other) == setting(group)]
        means = {m: [s.mean for values in comparable if (s := values[m]) is not None] for m in ACCURACIES}
        bests[group] = {m: max(values) for m, values in means.items() if values} if len(comparable) > 1 else {}
    return bests


def _has_mean(spread: Spread | None, best: float) -> bool:
    return spread is not None and spread.mean == best


def _baselines(
    keys: tuple[str, ...], groups: Mapping[tuple[str, ...], list[Run]], baseline: str | None
) -> dict[tuple[str, ...], list[Run]]:
    """Return for every other group the runs of the baseline that agree with it in all other keys."""
    if baseline is None:
        return {}
    column = keys.index("method") if "method" in keys else 0
    values = {group[column] for group in groups}
    if baseline not in values:
        raise InputError(f"the baseline '{baseline}' is not among the runs; {nearest(baseline, values)}")
    return {
        group: groups.get((*group[:column], baseline, *group[column + 1 :]), [])
        for group in groups
        if group[column] != baseline
    }


def _differences(members: Sequence[Run], base: Sequence[Run]) -> dict[str, Difference | None]:
    differences: dict[str, Difference | None] = {}
    for measure in COMPARED:
        own, other = _by_seed(members, measure), _by_seed(base, measure)
        differences[measure] = _interval([own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())])
    return differences


def _by_seed(members: Sequence[Run], measure: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in members:
        value = MEASURES[measure](run.result)
        if value is not None:
            values.setdefault(run.seed, []).append(value)
    return {seed: statistics.fmean(repeated) for seed, repeated in values.items()}


def _interval(differences: Sequence[float]) -> Difference | None:
    """Return mean and t interval of paired differences. The interval needs two pairs."""
    n = len(differences)
    if n == 0:
        return None
    mean = statistics.fmean(differences)
    if n == 1:
        return Difference(mean, None, None, 1)
    from scipy.special import stdtrit  # scipy.stats takes seconds to import

    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)


def _few_seeds_notes(rows: Sequence[Row], baseline: str | None) -> list[str]:
    """Return warnings about differences over fewer than three common seeds."""
    few: dict[int, list[str]] = {}
    for row in rows:
        # a measure may be missing in all runs: use the one with the most common seeds
        n = max((gap.n if gap is not None else 0 for gap in row.differences.values()), default=3)
        if n < 3:
            few.setdefault(n, []).append(", ".join(row.group.values()))
    consequences = {
        0: "no seed in common with it, so there is no difference",
        1: "one seed in common with it, so there is no interval; run at least 3 seeds",
        2: "two seeds in common with it, so the interval is very wide; run at least 3 seeds",
    }
    notes = []
    for n, names in sorted(few.items()):
        listed = ", ".join(f"'{name}'" for name in names)
        notes.append(f"baseline '{baseline}': {listed} {'has' if len(names) == 1 else 'have'} {consequences[n]}")
    return notes


def _mixed_note(group: tuple[str, ...], members: Sequence[Run]) -> str | None:
    """Return a warning if a group averages runs that differ in more than their seed."""
    settings = [run.settings() for run in members if run.config]
    keys = sorted(
        {key for one in settings for key in one if any(other.get(key, UNSET) != one[key] for other in settings)}
    )
    label = ", ".join(group)
    if keys:
        shown_keys = ", ".join(keys[:3]) + (" ..." if len(keys) > 3 else "")
        return f"the runs of '{label}' differ in {shown_keys}; use --by {keys[0]} to separate them"
    if len({run.seed for run in members}) < len(members):
        return f"several runs of '{label}' have the same seed; they count as separate runs"
    return None
