"""Runs side by side in a figure: which are repetitions of each other, and their means over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from polyfed.comparison.table import order_of
from polyfed.errors import InputError, nearest
from polyfed.report.figure_spec import Group, look
from polyfed.report.run_record import Record

Series = Sequence[float | None]


def varying(records: Sequence[Record]) -> tuple[str, ...]:
    """The settings in which runs of one method differ: without them, a mean would mix different experiments."""
    found: dict[str, None] = {}
    by_method: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record.as_run().settings())
    for settings in by_method.values():
        for key in dict.fromkeys(key for one in settings for key in one):
            if any(one.get(key) != settings[0].get(key) for one in settings):
                found[key] = None
    return tuple(found)


def grouped(records: Sequence[Record], by: Sequence[str] = ()) -> list[Group]:
    """By method and by the keys named; without keys, by those in which runs of a method differ."""
    known = {key for record in records for key in record.as_run().settings()}
    for key in by:
        if key not in known and all(record.setting(key) == "-" for record in records):
            raise InputError(f"no run has a setting called '{key}'; {nearest(key, known)}")
    keys = tuple(by) or varying(records)
    members: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        members.setdefault((record.method, *(record.setting(key) for key in keys)), []).append(record)
    groups = []
    for at, (values, own) in enumerate(sorted(members.items(), key=lambda item: [order_of(v) for v in item[0]])):
        parts = [f"{key.rpartition('.')[2]} {value}" for key, value in zip(keys, values[1:], strict=True)]
        groups.append(Group(", ".join([values[0], *parts]), look(at), own))
    return groups


def over_rounds(group: Group, read: Callable[[Record], Series]) -> list[tuple[int, float, float | None, int]]:
    """By round: mean, sample deviation where there are several, and how many runs have it."""
    found: dict[int, list[float]] = {}
    for record in group.records:
        for number, value in zip(record.rounds, read(record), strict=False):
            if value is not None:
                found.setdefault(number, []).append(value)
    return [(number, *mean_and_spread(values), len(values)) for number, values in sorted(found.items())]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample deviation, which one value does not have. (`statistics.stdev` is exact, and slow.)"""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def seeds_in(groups: Sequence[Group]) -> str:
    """How many runs stand behind a mean, in words."""
    counts = sorted({len(group.records) for group in groups})
    if counts[-1] == 1:
        return "one run each" if len(groups) > 1 else "one run"
    return f"means over {f'{counts[0]} to {counts[-1]}' if len(counts) > 1 else counts[0]} runs"
