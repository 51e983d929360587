"""Resolution of the `privacy` config: check field names and calibrate noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from polyfed.core.class_tables import Bound
from polyfed.core.method import Method
from polyfed.core.schema import Dim, Field, ScalarField, TableField, TensorField, TreeField, WeightsField
from polyfed.core.step import Messages
from polyfed.errors import InputError, nearest
from polyfed.guards import accountant
from polyfed.guards.sensitivity import classic_multiplier

Unit = Literal["row", "message"]
ROW_GUARANTEE = "one sample replaced by another of its class, with the client's model taken as known"


class FieldPrivacy(Protocol):
    """Privacy config of one field."""

    @property
    def clip(self) -> float | None: ...
    @property
    def epsilon(self) -> float | None: ...
    @property
    def delta(self) -> float: ...
    @property
    def noise(self) -> float | None: ...
    @property
    def per_release(self) -> bool: ...
    @property
    def releases(self) -> int | None: ...
    @property
    def unit(self) -> Literal["auto", "row", "message"]: ...
    @property
    def min_count(self) -> int | None: ...
    @property
    def relative_to(self) -> str | None: ...
    @property
    def sensitivity(self) -> Literal["clip", "measured"]: ...


@dataclass(frozen=True)
class Schedule:
    """Maximum number of times that a client can take part."""

    rounds: int  # rounds of the client that takes part most often
    attempts: int = 1  # attempts at one round


@dataclass(frozen=True)
class Protection:
    """Protection of one field. `sensitivity` is the largest L2 change that one change of the data can cause."""

    field: str
    steps: tuple[str, ...]  # that send it
    clip: float | None
    multiplier: float  # standard deviation of the noise over the sensitivity
    delta: float
    unit: Unit
    min_count: int | None
    relative_to: str | None
    measured: bool
    limit: int | None  # largest number of distinct releases by a client; None: no limit
    planned: int | None  # number of releases that the noise was calibrated for
    counted: bool  # whether a step may run more than once a round, because `limit` bounds the releases anyway
    unprotected: str = ""  # what the field reveals without noise

    @property
    def sensitivity(self) -> float | None:
        """Rows of norm `clip` are at most 2 clip apart. A mean of n clipped rows changes by at most 2 clip / n."""
        return None if self.measured or self.clip is None else 2 * self.clip / (self.min_count or 1)

    @property
    def bound(self) -> Bound | None:
        """Condition on class means that gives the lower sensitivity 2 clip / min_count."""
        return None if self.min_count is None or self.clip is None else Bound(self.clip, self.min_count)

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the noise; None if the sensitivity is measured for every release."""
        return None if self.sensitivity is None else self.multiplier * self.sensitivity

    @property
    def guarantee(self) -> str:
        """Change of a client's data for which the epsilon holds."""
        if self.measured:
            return "none: the sensitivity was measured, not bounded"
        if self.unit == "row":
            return ROW_GUARANTEE
        return message_guarantee(self.unprotected)


def message_guarantee(unprotected: str) -> str:
    """Describe the change of data for which the epsilon of a complete message holds."""
    exception = f" that does not alter what is sent without noise: {unprotected}" if unprotected else ""
    return f"any change of the client's data{exception}"


def steps_by_field(method: Method) -> dict[str, tuple[str, ...]]:
    """Return the fields that clients upload, and the steps that send them."""
    steps: dict[str, tuple[str, ...]] = {}
    for name in dir(type(method)):
        messages = getattr(getattr(type(method), name), "messages", None)
        for field in messages.up if isinstance(messages, Messages) else ():
            steps[field] = (*steps.get(field, ()), name)
    return steps


def resolve(
    configs: Mapping[str, FieldPrivacy],
    method: Method,
    schedule: Schedule,
    multipliers: Mapping[str, float] | None = None,
) -> tuple[Protection, ...]:
    """Return the protection of every configured field. `multipliers` are from an earlier calibration."""
    sent = steps_by_field(method)
    protections = []
    for field, config in configs.items():
        if field not in sent:
            raise InputError(f"privacy: {method.name} sends no field '{field}'; {nearest(field, sent)}")
        multiplier = (multipliers or {}).get(field)
        protections.append(_resolve_field(field, config, method, sent[field], schedule, multiplier))
    _check_bounds(protections)
    return tuple(protections)


def _resolve_field(
    field: str,
    config: FieldPrivacy,
    method: Method,
    steps: tuple[str, ...],
    schedule: Schedule,
    multiplier: float | None,
) -> Protection:
    kinds = [getattr(type(method), name).messages.up[field] for name in steps]
    by_row = all(_has_rows(kind, method) for kind in kinds)
    unit: Unit = config.unit if config.unit != "auto" else "row" if by_row else "message"
    _check_kind(field, kinds, unit, by_row)
    if config.min_count is not None and not (unit == "row" and all(isinstance(kind, TableField) for kind in kinds)):
        raise InputError(
            f"privacy.{field}.min_count needs class means that are protected row by row; '{field}' has none, or its "
            "unit is 'message'"
        )
    if config.relative_to is not None:
        for name in steps:
            down = getattr(type(method), name).messages.down
            if config.relative_to not in down:
                raise InputError(
                    f"privacy.{field}.relative_to is '{config.relative_to}', which step '{name}' does not receive; "
                    f"{nearest(config.relative_to, down)}"
                )
    measured = config.sensitivity == "measured"
    # every step once a round, and once more if the method has a `finish`
    finishes = type(method).finish is not Method.finish
    limit = config.releases or (schedule.rounds + finishes) * len(steps)
    whole_run = config.epsilon is not None and not config.per_release and not measured
    limit *= schedule.attempts  # a repeated round may release other values
    planned = limit if whole_run else None
    if multiplier is None:
        multiplier = _multiplier(field, config, planned)
    return Protection(
        field,
        steps,
        config.clip,
        multiplier,
        config.delta,
        unit,
        config.min_count,
        config.relative_to,
        measured,
        limit if whole_run or config.releases else None,
        planned,
        config.releases is not None or finishes,
        _unprotected(kinds),
    )


def _multiplier(field: str, config: FieldPrivacy, planned: int | None) -> float:
    if config.noise is not None:
        return config.noise
    if config.epsilon is None:
        raise InputError(f"privacy.{field} has neither epsilon nor noise; give one of them")
    if config.sensitivity == "measured":
        return classic_multiplier(config.epsilon, config.delta)
    return accountant.multiplier(config.epsilon, config.delta, planned or 1)


def _has_rows(kind: Field, method: Method) -> bool:
    """Return whether one sample influences at most one row. Only then is the sensitivity of all rows 2 clip."""
    rows = isinstance(kind, TableField) or (isinstance(kind, TensorField) and len(kind.dims) > 1)
    return rows and kind.has_own_rows(method)


def _unprotected(kinds: list[Field]) -> str:
    """Describe what a protected field reveals without noise."""
    parts = []
    if any(isinstance(kind, TableField) for kind in kinds):
        parts.append("which classes have a row")
    if any(isinstance(kind, TableField) and kind.counts for kind in kinds):
        parts.append("how many samples are behind it")
    if any(isinstance(kind, TensorField) and not all(_is_common(dim) for dim in kind.dims) for kind in kinds):
        parts.append("how many rows there are")
    if any(isinstance(kind, WeightsField | TreeField) for kind in kinds):
        parts.append("how many batches BatchNorm has counted")
    if any(kind.optional for kind in kinds):
        parts.append("whether the field is there")
    return ", and ".join(parts)


def _is_common(dim: Dim) -> bool:
    """Return whether a dimension does not depend on the client's data."""
    return isinstance(dim, int) or dim in ("classes", "features")


def _check_kind(field: str, kinds: list[Field], unit: Unit, by_row: bool) -> None:
    for kind in kinds:
        if isinstance(kind, ScalarField):
            raise InputError(f"privacy: '{field}' is one {kind.kind}; tables, tensors and weights can be protected")
        if isinstance(kind, TensorField | TableField) and not kind.dtype.is_floating_point:
            raise InputError(f"privacy: '{field}' holds {kind.dtype}, which noise cannot protect; only floats can be")
    if unit == "row" and not by_row:
        raise InputError(
            f"privacy.{field}.unit is 'row', but '{field}' has no rows of which a sample influences only one; "
            "use 'message'"
        )


def _check_bounds(protections: list[Protection]) -> None:
    """Raise InputError if class means of one step have different bounds: a step applies one."""
    by_step: dict[str, Protection] = {}
    for one in protections:
        for name in one.steps if one.min_count is not None else ():
            other = by_step.setdefault(name, one)
            if other.bound != one.bound:
                raise InputError(
                    f"privacy: '{other.field}' and '{one.field}' are sent by the same step and both have min_count, "
                    f"so they need the same clip and min_count; found {other.clip:g} with {other.min_count} and "
                    f"{one.clip:g} with {one.min_count}"
                )
