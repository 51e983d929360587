"""What a run has cost each client, from the record of its rounds to `result.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyfed.guards import accountant
from polyfed.guards.protections import MESSAGE_GUARANTEE, ROW_GUARANTEE, Protection

NOTHING_LEFT = {"raised", "storage"}  # failures at the client before a reply; all others may have followed one


def released(
    protections: Iterable[Protection], left: Iterable[Mapping[str, Any]], failures: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """By field and client, how often it left in a round. What may have left without arriving counts as well."""
    found: dict[str, dict[str, int]] = {}
    gone, lost = list(left), [failure for failure in failures if failure["kind"] not in NOTHING_LEFT]
    for one in protections:
        clients = [str(message["client"]) for message in gone if one.field in message["fields"]]
        clients += [str(failure["client"]) for failure in lost if set(failure["steps"]) & set(one.steps)]
        found[one.field] = {name: clients.count(name) for name in dict.fromkeys(clients)}
    return found


def spent(
    protections: Sequence[Protection],
    unprotected: Sequence[str],
    releases: Iterable[Mapping[str, Mapping[str, int]]],
    names: Sequence[str],
) -> dict[str, Any]:
    """The privacy entry of a result: how fields were protected, what is not, and the composed cost by client."""
    counts: dict[str, dict[str, int]] = {one.field: {} for one in protections}
    for by_field in releases:  # of each round
        for field, by_client in by_field.items():
            for client, count in by_client.items():
                counts[field][client] = counts[field].get(client, 0) + count
    bounded = [one for one in protections if not one.measured]
    delta = max((one.delta for one in bounded), default=None)
    joint = _joint_guarantee(bounded)

    def cost(fields: Sequence[Protection], client: str, at: float) -> float:
        return accountant.epsilon(((one.multiplier, counts[one.field].get(client, 0)) for one in fields), at)

    return {
        "fields": {
            one.field: {
                "clip": one.clip,
                "unit": one.unit,
                "noise_multiplier": one.multiplier,
                "sensitivity": one.sensitivity,
                "sigma": one.sigma,
                "planned_releases": one.planned,
                "epsilon": None if one.measured else max(cost([one], name, one.delta) for name in names),
                "delta": None if one.measured else one.delta,
                "holds_for": one.guarantee,
                "not_protected": one.beside,
            }
            for one in protections
        },
        "clients": {
            name: {
                # all bounded fields together, over all rounds
                "epsilon": None if delta is None else cost(bounded, name, delta),
                "delta": delta,
                "holds_for": joint,
                "releases": {one.field: counts[one.field].get(name, 0) for one in protections},
            }
            for name in names
        },
        "no_guarantee": [one.field for one in protections if one.measured],
        "unprotected": list(unprotected),
    }


def _joint_guarantee(bounded: Sequence[Protection]) -> str | None:
    """For which change of the data several fields' joint epsilon holds: the least of what it holds for alone."""
    if any(one.unit == "row" for one in bounded):
        return ROW_GUARANTEE
    beside = "; ".join(dict.fromkeys(one.beside for one in bounded if one.beside))
    return (MESSAGE_GUARANTEE + (f" that leaves as it is: {beside}" if beside else "")) if bounded else None
