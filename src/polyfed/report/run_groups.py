"""Group runs that differ in their seed only, and average them over rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfed.comparison.settings import ALGORITHM, NO_FILTER, shared_settings, split_by_settings
from polyfed.comparison.table import sort_key
from polyfed.errors import InputError, nearest
from polyfed.report.clean_text import clean
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import Style, style_of_method
from polyfed.runs.config_text import UNSET

Series = Sequence[float | None]


@dataclass
class Group:
    """Runs that differ in their seed only, under one label."""

    method: str
    options: str  # of the algorithm, if they differ between groups, such as 'guidance 1.0'
    setting: str  # other settings that differ between groups of one method, such as 'alpha 0.1'
    style: Style  # different for all groups
    method_style: Style  # the same in all settings
    values: Mapping[str, str] = field(default_factory=dict)  # of the keys that define the group, without the method
    records: list[RunRecord] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The method with its options."""
        return ", ".join(part for part in (self.method, self.options) if part)

    @property
    def label(self) -> str:
        """The method with its options and settings."""
        return ", ".join(part for part in (self.name, self.setting) if part)


def group_runs(records: Sequence[RunRecord], by: Sequence[str] = ()) -> list[Group]:
    """Group runs by method, by the keys `by`, and by all other settings in which runs of one method differ.

    The groups are sorted by setting, then by method, `local` first.
    """
    known = {key for record in records for key in record.as_run().settings()}
    for key in by:
        if key not in known and all(record.setting(key) == UNSET for record in records):
            raise InputError(f"no run has a setting called '{key}'; {nearest(key, known)}")
    by_source = {record.as_run().source: record for record in records}
    wanted = tuple(dict.fromkeys(["method", *by]))
    keys, by_values, _ = split_by_settings([record.as_run() for record in records], wanted)
    ordered = sorted(by_values.items(), key=lambda item: _order(keys, item[0]))
    groups: list[Group] = []
    variants: Counter[tuple[str, ...]] = Counter()
    for values, runs in ordered:
        method = clean(values[0])
        own = {key: clean(value) for key, value in zip(keys[1:], values[1:], strict=True)}
        options, setting = _describe(own, keys, of_method=True), _describe(own, keys, of_method=False)
        base = runs[0].result.method  # without the server filter, which `method` names
        style, method_style = style_of_method(base, variants[base,]), style_of_method(base, variants[base, setting])
        variants.update([(base,), (base, setting)])
        members = [by_source[run.source] for run in runs]
        groups.append(Group(method, options, setting, style, method_style, own, members))
    return groups


def _order(keys: tuple[str, ...], values: tuple[str, ...]) -> tuple[object, ...]:
    setting = [sort_key(value) for value in shared_settings(keys, values)]
    return (setting, values[0] != "local", [sort_key(value) for value in values])


def _describe(values: Mapping[str, str], keys: Sequence[str], *, of_method: bool) -> str:
    """Describe the values of a group by short names of their keys, or by the whole key if that is ambiguous."""
    names = [_short_name(key) for key in keys]
    parts = []
    for key, value in values.items():
        if (key.partition(".")[0] in ALGORITHM) == of_method and value not in (UNSET, NO_FILTER):
            name = _short_name(key)
            parts.append(f"{name if names.count(name) == 1 else key} {value}")
    return ", ".join(parts)


def _short_name(key: str) -> str:
    """Return the last part of a key, or the one before if the last says too little: models.group is 'models'."""
    first, _, last = key.rpartition(".")
    return first.rpartition(".")[2] if first and last in {"group", "name", "scheme"} else last


def by_setting(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Return the groups by setting, in their order."""
    settings: dict[str, list[Group]] = {}
    for group in groups:
        settings.setdefault(group.setting, []).append(group)
    return settings


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
        return "One run of each" if len(groups) > 1 else "A single run"
    return f"Means over {f'{counts[0]} to {counts[-1]}' if len(counts) > 1 else counts[0]} runs"
