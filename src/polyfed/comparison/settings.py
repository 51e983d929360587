"""Group runs by their settings, so that runs with different settings are never averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfed.comparison.runs import AGGREGATION, FILTER, Run
from polyfed.runs.config_text import UNSET, format_value

MAX_COLUMNS = 3  # more settings that differ are shown as one column of numbers
NUMBERED = "setting"
NO_FILTER = "none"  # value of the key
SPLITTING = "splitting"
OFF = ("false", "none", "[]")  # a key that earlier releases did not have has such a value if it is not used
ALGORITHM = ("method", SPLITTING, FILTER, AGGREGATION)

Groups = dict[tuple[str, ...], list[Run]]


def split_by_settings(runs: Sequence[Run], keys: tuple[str, ...]) -> tuple[tuple[str, ...], Groups, list[str]]:
    """Group runs by the values of `keys`, and by all other settings in which runs of one group differ.

    Return the keys of the groups with those that were added, the groups, and a note about the added ones.
    """
    groups: Groups = {}
    for run in runs:
        groups.setdefault(tuple(format_value(run.lookup(key)) for key in keys), []).append(run)
    added = sorted({key for members in groups.values() for key in _differing(members)})
    if FILTER in added and "method" in keys:
        groups, added = _with_filter_names(keys, groups), [key for key in added if key != FILTER]
    if not added:
        return keys, groups, []
    settings = {id(run): run.settings() for run in runs}
    numbers: dict[tuple[str, ...], str] = {}
    split: Groups = {}
    for group, members in groups.items():
        for run in members:
            values = tuple(settings[id(run)].get(key, "-") for key in added)
            extra = values if len(added) <= MAX_COLUMNS else (numbers.setdefault(values, str(len(numbers) + 1)),)
            split.setdefault((*group, *extra), []).append(run)
    if len(added) <= MAX_COLUMNS:
        return (*keys, *added), split, [f"runs differ in {', '.join(added)}, so they are in rows of their own"]
    shown = ", ".join(added[:MAX_COLUMNS])
    note = f"runs differ in {len(added)} settings ({shown}, ...), so they are in rows of their own; choose with --by"
    return (*keys, NUMBERED), split, [note]


def _with_filter_names(keys: tuple[str, ...], groups: Groups) -> Groups:
    """Name the server filter of runs after their method, such as 'fedavg + inco'."""
    column, named = keys.index("method"), Groups()
    for group, members in groups.items():
        for run in members:
            name = run.settings().get(FILTER, UNSET)
            method = group[column] if name in (UNSET, NO_FILTER) else f"{group[column]} + {name}"
            named.setdefault((*group[:column], method, *group[column + 1 :]), []).append(run)
    return named


def shared_settings(keys: tuple[str, ...], group: tuple[str, ...], *without: str) -> tuple[str, ...]:
    """Return the values of a group that other methods have too: without the algorithm and without `without`.

    The algorithm is the method with its options, the splitting of the server's model, the server filter and the
    aggregation rule: local training uses none of them.
    """
    return tuple(
        value
        for key, value in zip(keys, group, strict=True)
        if key not in without and key.partition(".")[0] not in ALGORITHM
    )


def _differing(members: Sequence[Run]) -> set[str]:
    """Return the settings in which some runs differ. Results without a config are not compared."""
    settings = [run.settings() for run in members if run.config]
    differing = {
        key
        for one in settings
        for key, value in one.items()
        if any(other.get(key, value if value in OFF else UNSET) != value for other in settings)
    }
    if FILTER in differing:  # options of one filter say nothing about another
        differing = {key for key in differing if not key.startswith(f"{FILTER}.")}
    others = sorted(differing - {SPLITTING})
    if others and _determines(settings, others, SPLITTING):
        return set(others)  # such as the group of models: sub-models of one model need a splitting
    return differing


def _determines(settings: Sequence[Mapping[str, str]], keys: Sequence[str], other: str) -> bool:
    """Return whether runs that agree in `keys` also agree in another key."""
    values: dict[tuple[str, ...], set[str]] = {}
    for one in settings:
        values.setdefault(tuple(one.get(key, UNSET) for key in keys), set()).add(one.get(other, UNSET))
    return all(len(found) == 1 for found in values.values())
