"""Check the values of a `result.json` that may be damaged or written by someone else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polyfed.runs.json_values import integer, is_number


def check_result(result: Mapping[str, Any], newest: int) -> None:
    """Raise ValueError if values that tables and figures show are missing or of another type.

    `newest` is the newest version of the file that this release reads.
    """
    version = result.get("version", newest)
    if integer(version) is None or version > newest:
        raise ValueError(f"has version {repr(version)[:40]}; this release reads version {newest}")
    try:
        valid = isinstance(result["method"], str) and all(map(is_number, _numbers(result)))
        valid = valid and all(isinstance(failure, Mapping) for failure in result.get("failures", ()))
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise ValueError("holds no result that polyfed wrote")


def _numbers(result: Mapping[str, Any]) -> Iterator[Any]:
    """Yield all values that must be numbers: those that every result has, and lists where they exist."""
    measured = [result["accuracy"][kind] for kind in ("personal", "global")]
    yield from (result["seed"], result["bytes"]["up"], result["bytes"]["down"], result["seconds"]["total"])
    yield from (one[key] for one in measured if one is not None for key in ("final", "best"))
    if "rounds" in result:
        yield result["rounds"]
    sections = [result.get("loss", {}), result["bytes"], result["seconds"]]
    sections += [one for one in result["accuracy"].values() if one is not None]
    metrics = [one for by in result.get("metrics", {}).values() for name, one in by.items() if name != "confusion"]
    yield from (one["final"] for one in metrics if one["final"] is not None)
    sections += metrics
    for values in (value for section in sections for value in section.values()):
        if isinstance(values, list):
            yield from (value for value in values if value is not None)
