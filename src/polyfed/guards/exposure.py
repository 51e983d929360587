"""Unprotected uploads that depend on single samples. A run that sends one has no epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyfed.core.method import Method
from polyfed.core.schema import Field, ScalarField, TableField, TensorField
from polyfed.guards.protections import Protection, steps_by_field


def exposed_fields(method: Method, protections: Sequence[Protection]) -> frozenset[str]:
    """Return the unprotected fields that void the epsilon of the protected ones if a client uploads them.

    These are tables and tensors of numbers that are computed from samples. Weights are among them if an epsilon is to
    hold for any change of the data; the epsilon of rows takes the client's model as known. Labels, counts and single
    numbers are not: replacing a sample by one of its class does not change labels and counts, and docs/privacy.md
    lists single numbers as unprotected.
    """
    protected = {one.field for one in protections}
    model_is_known = any(one.unit == "row" and not one.measured for one in protections)
    return frozenset(
        field
        for field, steps in steps_by_field(method).items()
        if field not in protected
        and any(_depends_on_samples(kind, model_is_known) for kind in _kinds(method, field, steps))
    )


def explain_exposure(exposed: Iterable[str]) -> str | None:
    """Say why a run has no epsilon, or return None if no field voids it."""
    names = [f"'{field}'" for field in exposed]
    if not names:
        return None
    verb = "depends on single samples and was" if len(names) == 1 else "depend on single samples and were"
    return f"{', '.join(names)} {verb} uploaded without protection"


def _kinds(method: Method, field: str, steps: Iterable[str]) -> list[Field]:
    schemas: list[Mapping[str, Field]] = [getattr(type(method), name).messages.up for name in steps]
    return [schema[field] for schema in schemas if field in schema]


def _depends_on_samples(kind: Field, model_is_known: bool) -> bool:
    if isinstance(kind, ScalarField):
        return False
    if isinstance(kind, TensorField | TableField):
        return kind.dtype.is_floating_point and not (kind.from_model and model_is_known)
    return not model_is_known  # weights, or other tensors of a network
