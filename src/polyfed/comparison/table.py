"""Compute a comparison: groups of runs, mean and standard deviation over seeds, differences to a baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfed.comparison import formats
from polyfed.comparison.gain import Difference, difference, few_seeds_notes
from polyfed.comparison.measures import ACCURACIES, ACCURACY, COSTS, Measure, columns, compared_measures
from polyfed.comparison.runs import Run, Source, by_head, load_runs
from polyfed.comparison.settings import shared_settings, split_by_settings
from polyfed.errors import InputError, nearest
from polyfed.runs.config_text import flatten

LOCAL = "local"  # method that every other is compared with by default
AUTO, NO_BASELINE = "auto", "none"  # other values of `baseline`
DESCRIPTIONS = {
    "balanced_accuracy": "balanced accuracy in %: mean recall over classes",
    "macro_f1": "macro F1 in %: mean over classes",
    "auroc": "AUROC in %: each class against the rest",
    "log_loss": "log loss in nats",
    "calibration_error": "calibration error in %: 15 bins",
    "worst_decile": "worst 10 %: mean accuracy of the worst 10 % of clients, in %",
    "client_mean": "mean over clients: accuracy in %, every client with the same weight",
}


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of some runs. The deviation of one run is None."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """A row of the comparison: the runs of one group."""

    group: Mapping[str, str]
    runs: int
    seeds: tuple[int, ...]
    values: Mapping[str, Spread | None]  # None: not measured
    best: frozenset[str] = frozenset()  # measures in which no comparable group has a higher mean
    differences: Mapping[str, Difference | None] = field(default_factory=dict)  # to the baseline, by measure


@dataclass(frozen=True, repr=False)
class Comparison:
    """A table of runs. `str()` returns it as text, `to("md")` in another format."""

    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: str | None = None
    measures: tuple[Measure, ...] = (*ACCURACIES, *COSTS)
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """A description of the columns."""
        with_best = any(measure.best for measure in self.measures)
        parts = [
            "Accuracy in %: personal on each client's own held-out data, global on the common test set",
            "final = last round" + (", best = best round, chosen on test data" if with_best else ""),
            "mean ± sample standard deviation over n runs",
        ]
        for metric in dict.fromkeys(one.metric for one in self.measures if one.kind and one.metric != ACCURACY):
            parts.append(DESCRIPTIONS[metric])
        if self.baseline is not None:
            parts.append(f"gain = mean difference to {self.baseline}, with a 95 % t interval over common seeds")
            if any(gap and gap.over == "clients" for row in self.rows for gap in row.differences.values()):
                parts.append("if there is one common seed, over clients")
        return "; ".join(parts) + "."

    def to(self, format: str) -> str:
        """Return the comparison as table, csv, md, latex, html or json."""
        if format not in formats.FORMATS:
            raise InputError(f"there is no format '{format}'; {nearest(format, formats.FORMATS)}")
        return formats.FORMATS[format](self)

    def __str__(self) -> str:
        return self.to("table")

    __repr__ = __str__  # what a session shows

    def _repr_html_(self) -> str:
        return formats.html_table(self)


def compare(
    sources: Iterable[Source],
    *,
    by: str | Sequence[str] = (),
    baseline: str | None = AUTO,
    metric: str | None = None,
) -> Comparison:
    """Compare results or run folders, grouped by method and by the config keys `by`.

    `baseline` is a method, or a value of the first key if all runs have the same method. Each row then has its
    differences to the baseline over common seeds. The default, 'auto', is `local` if it is among
    the methods; 'none' and None are no method.
    `metric` is a metric to show instead of accuracy, such as 'auroc'.

    Examples:
        >>> table = polyfed.compare(["runs/local", "runs/digits"])
        >>> table.baseline
        'local'
        >>> markdown = table.to("md")
    """
    runs, skipped = load_runs(sources)
    runs = [one for run in runs for one in (run, by_head(run)) if one is not None]
    return compare_runs(runs, by=by, baseline=baseline, metric=metric, notes=skipped)


def compare_runs(
    runs: Sequence[Run],
    *,
    by: str | Sequence[str] = (),
    baseline: str | None = AUTO,
    metric: str | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare finished runs that were already loaded."""
    keys, groups, split = split_by_settings(runs, _keys(runs, [by] if isinstance(by, str) else list(by)))
    ordered = dict(sorted(groups.items(), key=lambda item: [sort_key(part) for part in item[0]]))
    measures = columns((run.result for run in runs), metric)
    spreads = {group: _spreads(members, measures) for group, members in ordered.items()}
    bests = _bests(keys, spreads, measures)
    if baseline == NO_BASELINE:
        baseline = None
    elif baseline == AUTO:
        methods = {group[keys.index("method")] for group in ordered} if "method" in keys else set()
        baseline = LOCAL if LOCAL in methods and len(methods) > 1 else None
    baselines = _baselines(keys, ordered, baseline)
    rows = [
        Row(
            group=dict(zip(keys, group, strict=True)),
            runs=len(members),
            seeds=tuple(sorted({run.seed for run in members})),
            values=spreads[group],
            best=frozenset(m for m, best in bests[group].items() if _has_mean(spreads[group][m], best)),
            differences={
                measure.key: difference(members, baselines[group], measure) for measure in compared_measures(measures)
            }
            if group in baselines
            else {},
        )
        for group, members in ordered.items()
    ]
    if baseline is not None:
        rows.sort(key=lambda row: _place(keys, row))
    repeated = [note for group, members in ordered.items() if (note := _repeated_note(group, members))]
    few = few_seeds_notes(
        {
            ", ".join(row.group.values()): row.differences
            for row in rows
            if any(row.values[measure.key] is not None for measure in compared_measures(measures))
        },
        baseline,
    )
    return Comparison(keys, tuple(rows), baseline, measures, (*notes, *split, *repeated, *few))


def _place(keys: tuple[str, ...], row: Row) -> tuple[list[tuple[int, float, str]], bool, float]:
    """Return a key that sorts rows by their setting, the baseline before the others, and these by their gain."""
    setting = [sort_key(part) for part in shared_settings(keys, tuple(row.group.values()))]
    gain = next((gap.mean for gap in row.differences.values() if gap is not None), -math.inf)
    return setting, bool(row.differences), gain


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


def _spreads(members: Sequence[Run], measures: Sequence[Measure]) -> dict[str, Spread | None]:
    spreads: dict[str, Spread | None] = {}
    for measure in measures:
        values = [value for run in members if (value := measure.read(run.result)) is not None]
        std = statistics.stdev(values) if len(values) > 1 else None
        spreads[measure.key] = Spread(statistics.fmean(values), std, len(values)) if values else None
    return spreads


def _bests(
    keys: tuple[str, ...],
    spreads: Mapping[tuple[str, ...], Mapping[str, Spread | None]],
    measures: Sequence[Measure],
) -> dict[tuple[str, ...], dict[str, float]]:
    """Return for every group the best mean of each accuracy and metric among comparable groups.

    With several methods, comparable groups agree in all other settings; with one method, all groups are comparable.
    A group without comparable groups has no best values.
    """

    def setting(group: tuple[str, ...]) -> tuple[str, ...]:
        return shared_settings(keys, group) if "method" in keys else ()

    bests: dict[tuple[str, ...], dict[str, float]] = {}
    for group in spreads:
        comparable = [values for other, values in spreads.items() if setting(other) == setting(group)]
        bests[group] = {}
        for measure in measures if len(comparable) > 1 else ():
            means = [spread.mean for values in comparable if (spread := values[measure.key]) is not None]
            if measure.kind and means:
                bests[group][measure.key] = min(means) if measure.lower_is_better else max(means)
    return bests


def _has_mean(spread: Spread | None, best: float) -> bool:
    return spread is not None and spread.mean == best


def _baselines(
    keys: tuple[str, ...], groups: Mapping[tuple[str, ...], list[Run]], baseline: str | None
) -> dict[tuple[str, ...], list[Run]]:
    """Return for every other group the runs of the baseline that agree with it in all keys but those of methods."""
    if baseline is None:
        return {}
    column = keys.index("method") if "method" in keys else 0
    values = {group[column] for group in groups}
    if baseline not in values:
        raise InputError(f"the baseline '{baseline}' is not among the runs; {nearest(baseline, values)}")
    first = keys[column]
    by_setting: dict[tuple[str, ...], list[Run]] = {}
    for group, members in groups.items():
        if group[column] == baseline:
            by_setting.setdefault(shared_settings(keys, group, first), []).extend(members)
    return {
        group: by_setting.get(shared_settings(keys, group, first), [])
        for group in groups
        if group[column] != baseline
    }


def _repeated_note(group: tuple[str, ...], members: Sequence[Run]) -> str | None:
    """Return a warning if a group has several runs of one seed."""
    if len({run.seed for run in members}) == len(members):
        return None
    return f"several runs of '{', '.join(group)}' have the same seed; they count as separate runs"
