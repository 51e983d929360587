"""Privacy cost of a run by client, for `result.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyfed.guards import accountant
from polyfed.guards.exposure import explain_exposure
from polyfed.guards.protections import ROW_GUARANTEE, Protection, message_guarantee

NO_REPLY_SENT = {"raised", "storage"}  # failures at the client before a reply; others may have followed one


def count_releases(
    protections: Iterable[Protection], uploads: Iterable[Mapping[str, Any]], failures: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """Return how often each field was sent in a round, by client. Replies that may have been lost count too."""
    counts: dict[str, dict[str, int]] = {}
    accepted, lost = list(uploads), [failure for failure in failures if failure["kind"] not in NO_REPLY_SENT]
    for one in protections:
        clients = [str(message["client"]) for message in accepted if one.field in message["fields"]]
        clients += [str(failure["client"]) for failure in lost if set(failure["steps"]) & set(one.steps)]
        counts[one.field] = {name: clients.count(name) for name in dict.fromkeys(clients)}
    return counts


def privacy_report(
    protections: Sequence[Protection],
    unprotected: Sequence[str],
    exposed: Sequence[str],
    releases: Iterable[Mapping[str, Mapping[str, int]]],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the `privacy` entry of a result: protected and unprotected fields, and the composed cost by client.

    `exposed` are unprotected fields that depend on single samples. With one of them, clients have no epsilon.
    """
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
                "not_protected": one.unprotected,
            }
            for one in protections
        },
        "clients": {
            name: {
                # all fields with a bounded sensitivity together, over all rounds
                "epsilon": None if delta is None or exposed else cost(bounded, name, delta),
                "delta": None if exposed else delta,
                "holds_for": None if exposed else joint,
                "releases": {one.field: counts[one.field].get(name, 0) for one in protections},
            }
            for name in names
        },
        "no_epsilon": explain_exposure(exposed),
        "no_guarantee": [one.field for one in protections if one.measured],
        "unprotected": list(unprotected),
    }


def _joint_guarantee(bounded: Sequence[Protection]) -> str | None:
    """Return the change of data for which the joint epsilon of several fields holds: the weakest of theirs."""
    if any(one.unit == "row" for one in bounded):
        return ROW_GUARANTEE
    exposed = "; ".join(dict.fromkeys(one.unprotected for one in bounded if one.unprotected))
    return message_guarantee(exposed) if bounded else None
