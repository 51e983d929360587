"""The numbers of a comparison: groups of runs, means and deviations over seeds, differences to a baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfed.comparison import formats
from polyfed.comparison.runs import Run, Source, gather
from polyfed.errors import InputError, nearest
from polyfed.runs.config_text import flatten, format_value
from polyfed.runs.records import Result

MIB = 1 << 20
CONFIDENCE = 0.95


def _accuracy(kind: str, which: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        measured = result.accuracy[kind]
        return None if measured is None else 100.0 * float(getattr(measured, which))

    return read


# every column of numbers: how it is read from a result, in the unit that is shown (per cent, MiB, seconds)
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
COMPARED = ("personal_final", "global_final")  # what is held against a baseline


@dataclass(frozen=True)
class Spread:
    """The mean of some runs and their sample deviation, which one run does not have."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean difference to the baseline over the `n` seeds that both have, with its 95 % interval.

    One common seed has no interval: nothing says how much of its difference is chance.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """The runs of one group."""

    group: Mapping[str, str]
    runs: int
    seeds: tuple[int, ...]
    values: Mapping[str, Spread | None]  # None: not measured
    best: frozenset[str] = frozenset()  # the measures in which no group has a higher mean
    differences: Mapping[str, Difference | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A table of runs. `str()` shows it; `to("md")` and the other formats write it down."""

    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """What the numbers are."""
        parts = [
            "Accuracy in %: personal on each client's own held-out data, global on the common test set",
            "final = last round, best = best round, chosen on test data",
            "mean ± sample standard deviation over n runs",
        ]
        if self.baseline is not None:
            parts.append(f"Δ = mean difference to {self.baseline} over common seeds with its 95 % t interval")
        return "; ".join(parts) + "."

    def to(self, format: str) -> str:
        """The comparison as table, csv, md, latex or html."""
        if format not in formats.FORMATS:
            raise InputError(f"there is no format '{format}'; {nearest(format, formats.FORMATS)}")
        return formats.FORMATS[format](self)

    def __str__(self) -> str:
        return self.to("table")

    def _repr_html_(self) -> str:
        return formats.html_table(self)


def compare(sources: Iterable[Source], *, by: str | Sequence[str] = (), baseline: str | None = None) -> Comparison:
    """Put results or run folders side by side, by method and by the config keys named.

    `baseline` is a method (or a value of the first key, where all runs have one method): each row then has its
    differences to it over the seeds that both have.
    """
    runs, left_out = gather(sources)
    return compare_runs(runs, by=by, baseline=baseline, notes=left_out)


def compare_runs(
    runs: Sequence[Run], *, by: str | Sequence[str] = (), baseline: str | None = None, notes: Sequence[str] = ()
) -> Comparison:
    """The same over finished runs that were read already."""
    keys = _keys(runs, [by] if isinstance(by, str) else list(by))
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(format_value(run.lookup(key)) for key in keys), []).append(run)
    ordered = dict(sorted(groups.items(), key=lambda item: [sort_key(part) for part in item[0]]))
    spreads = {group: _spreads(members) for group, members in ordered.items()}
    bests = _bests(keys, spreads)
    versus = _baselines(keys, ordered, baseline)
    rows = [
        Row(
            group=dict(zip(keys, group, strict=True)),
            runs=len(members),
            seeds=tuple(sorted({run.seed for run in members})),
            values=spreads[group],
            best=frozenset(measure for measure, best in bests[group].items() if _is(spreads[group][measure], best)),
            differences=_differences(members, versus[group]) if group in versus else {},
        )
        for group, members in ordered.items()
    ]
    mixed = [note for group, members in ordered.items() if (note := _mixture(group, members))]
    return Comparison(keys, tuple(rows), baseline, (*notes, *mixed, *_too_few(rows, baseline)))


def _keys(runs: Sequence[Run], asked: list[str]) -> tuple[str, ...]:
    """The columns that name a group. Methods are never averaged with each other, so they count where they differ."""
    for key in asked:
        if all(run.lookup(key) is None for run in runs):
            known = {known for run in runs for known, _ in flatten(run.config)} | {"method"}
            raise InputError(f"no run has a setting called '{key}'; {nearest(key, known)}")
    several = len({run.result.method for run in runs}) > 1
    return tuple(dict.fromkeys([*(["method"] if several or not asked else []), *asked]))


def sort_key(part: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        number = float(part)
    except ValueError:
        return 1, 0.0, part
    return (0, number, part) if math.isfinite(number) else (1, 0.0, part)


def _spreads(members: Sequence[Run]) -> dict[str, Spread | None]:
    found: dict[str, Spread | None] = {}
    for measure, read in MEASURES.items():
        values = [value for run in members if (value := read(run.result)) is not None]
        std = statistics.stdev(values) if len(values) > 1 else None
        found[measure] = Spread(statistics.fmean(values), std, len(values)) if values else None
    return found


def _bests(
    keys: tuple[str, ...], spreads: Mapping[tuple[str, ...], Mapping[str, Spread | None]]
) -> dict[tuple[str, ...], dict[str, float]]:
    """For every group, the highest mean of each accuracy among the groups it can be compared with.

    With several methods those are the ones that agree in all other settings; with one, all. Among one row there is
    nothing to mark.
    """
    at = keys.index("method") if "method" in keys else None

    def setting(group: tuple[str, ...]) -> tuple[str, ...]:
        return () if at is None else (*group[:at], *group[at + 1 :])

    found: dict[tuple[str, ...], dict[str, float]] = {}
    for group in spreads:
        rivals = [values for other, values in spreads.items() if setting(other) == setting(group)]
        means = {m: [s.mean for values in rivals if (s := values[m]) is not None] for m in ACCURACIES}
        found[group] = {m: max(of) for m, of in means.items() if of} if len(rivals) > 1 else {}
    return found


def _is(spread: Spread | None, best: float) -> bool:
    return spread is not None and spread.mean == best


def _baselines(
    keys: tuple[str, ...], groups: Mapping[tuple[str, ...], list[Run]], baseline: str | None
) -> dict[tuple[str, ...], list[Run]]:
    """For every other group, the runs of the baseline that agree with it in all other keys."""
    if baseline is None:
        return {}
    at = keys.index("method") if "method" in keys else 0
    there = {group[at] for group in groups}
    if baseline not in there:
        raise InputError(f"the baseline '{baseline}' is not among the runs; {nearest(baseline, there)}")
    return {
        group: groups.get((*group[:at], baseline, *group[at + 1 :]), []) for group in groups if group[at] != baseline
    }


def _differences(members: Sequence[Run], base: Sequence[Run]) -> dict[str, Difference | None]:
    found: dict[str, Difference | None] = {}
    for measure in COMPARED:
        ours, theirs = _by_seed(members, measure), _by_seed(base, measure)
        found[measure] = _interval([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])
    return found


def _by_seed(members: Sequence[Run], measure: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in members:
        value = MEASURES[measure](run.result)
        if value is not None:
            values.setdefault(run.seed, []).append(value)
    return {seed: statistics.fmean(found) for seed, found in values.items()}


def _interval(differences: Sequence[float]) -> Difference | None:
    """Mean and t interval of paired differences; two pairs are the least that have one."""
    n = len(differences)
    if n == 0:
        return None
    mean = statistics.fmean(differences)
    if n == 1:
        return Difference(mean, None, None, 1)
    from scipy.special import stdtrit  # scipy.stats takes seconds to import

    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)


def _too_few(rows: Sequence[Row], baseline: str | None) -> list[str]:
    """A sentence where differences rest on too few seeds to say how sure they are."""
    few: dict[int, list[str]] = {}
    for row in rows:
        # what nobody measured has no difference either: the measure with the most common seeds counts
        n = max((gap.n if gap is not None else 0 for gap in row.differences.values()), default=3)
        if n < 3:
            few.setdefault(n, []).append(", ".join(row.group.values()))
    why = {
        0: "no seed in common with it, so there is no difference",
        1: "one seed in common with it, so there is no interval; run at least 3 seeds",
        2: "two seeds in common with it, so the interval is very wide; run at least 3 seeds",
    }
    sentences = []
    for n, names in sorted(few.items()):
        who = ", ".join(f"'{name}'" for name in names)
        sentences.append(f"baseline '{baseline}': {who} {'has' if len(names) == 1 else 'have'} {why[n]}")
    return sentences


def _mixture(group: tuple[str, ...], members: Sequence[Run]) -> str | None:
    """A warning where a group averages runs that are not repetitions of each other."""
    settings = [run.settings() for run in members if run.config]
    keys = sorted({key for one in settings for key in one if any(other.get(key) != one[key] for other in settings)})
    label = ", ".join(group)
    if keys:
        shown_keys = ", ".join(keys[:3]) + (" ..." if len(keys) > 3 else "")
        return f"the runs of '{label}' differ in {shown_keys}; use --by {keys[0]} to keep them apart"
    if len({run.seed for run in members}) < len(members):
        return f"several runs of '{label}' have the same seed; they count as separate runs"
    return None
