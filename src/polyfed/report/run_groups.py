"""Group runs that differ in their seed only, and average them over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from polyfed.comparison.table import sort_key
from polyfed.errors import InputError, nearest
from polyfed.report.figure_spec import Group, style_for
from polyfed.report.run_record import RunRecord
from polyfed.runs.config_text import UNSET

Series = Sequence[float | None]


def varying_settings(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the settings in which runs of one method differ. Without them, a mean would mix experiments."""
    varying: dict[str, None] = {}
    by_method: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record.as_run().settings())
    for settings in by_method.values():
        for key in dict.fromkeys(key for one in settings for key in one):
            if any(one.get(key, UNSET) != settings[0].get(key, UNSET) for one in settings):
                varying[key] = None
    return tuple(varying)


def group_runs(records: Sequence[RunRecord], by: Sequence[str] = ()) -> list[Group]:
    """Group runs by method and by the keys `by`; without keys, by the settings in which runs of a method differ."""
    known = {key for record in records for key in record.as_run().settings()}
    for key in by:
        if key not in known and all(record.setting(key) == UNSET for record in records):
            raise InputError(f"no run has a setting called '{key}'; {nearest(key, known)}")
    keys = tuple(by) or varying_settings(records)
    members: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        members.setdefault((record.method, *(record.setting(key) for key in keys)), []).append(record)
    groups = []
    for index, (values, group) in enumerate(sorted(members.items(), key=lambda item: [sort_key(v) for v in item[0]])):
        parts = [f"{key.rpartition('.')[2]} {value}" for key, value in zip(keys, values[1:], strict=True)]
        groups.append(Group(", ".join([values[0], *parts]), style_for(index), group))
    return groups


def mean_by_round(group: Group, read: Callable[[RunRecord], Series]) -> list[tuple[int, float, float | None, int]]:
    """Return for each round: mean, sample standard deviation (None for one run), and number of runs."""
    by_round: dict[int, list[float]] = {}
    for record in group.records:
        for number, value in zip(record.rounds, read(record), strict=False):
            if value is not None:
                by_round.setdefault(number, []).append(value)
    return [(number, *mean_and_std(values), len(values)) for number, values in sorted(by_round.items())]


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation, which is None for one value. Faster than `statistics.stdev`."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def describe_counts(groups: Sequence[Group]) -> str:
    """Describe how many runs the means of a figure are taken over."""
    counts = sorted({len(group.records) for group in groups})
    if counts[-1] == 1:
        return "one run each" if len(groups) > 1 else "one run"
    return f"means over {f'{counts[0]} to {counts[-1]}' if len(counts) > 1 else counts[0]} runs"
