"""From what a config asks for to how a field is protected: names are checked and noise is calibrated."""

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
MESSAGE_GUARANTEE = "any change of the client's data"


class Asked(Protocol):
    """What a config says about one field."""

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
    """How often a client may be asked, at most."""

    rounds: int  # in which the client that takes part most often does
    attempts: int = 1  # how often one round may be tried


@dataclass(frozen=True)
class Protection:
    """How one field is protected. `sensitivity` is what one change of the data can move in L2 norm."""

    field: str
    steps: tuple[str, ...]  # that send it
    clip: float | None
    multiplier: float  # the noise's deviation over the sensitivity
    delta: float
    unit: Unit
    min_count: int | None
    relative_to: str | None
    measured: bool
    limit: int | None  # distinct releases that a client may make; none: as many as happen, each of them counted
    planned: int | None  # releases that the noise was calibrated for
    counted: bool  # whether a step may run more than once a round, since the number of releases is known otherwise
    beside: str = ""  # what leaves with the field as it is

    @property
    def sensitivity(self) -> float | None:
        """Two rows of norm `clip` are at most 2 clip apart; a mean of n clipped rows moves by 2 clip / n."""
        return None if self.measured or self.clip is None else 2 * self.clip / (self.min_count or 1)

    @property
    def bound(self) -> Bound | None:
        """What class means must be made of, for a sensitivity below that of any row of norm `clip`."""
        return None if self.min_count is None or self.clip is None else Bound(self.clip, self.min_count)

    @property
    def sigma(self) -> float | None:
        """The deviation of the noise on every number; none where it is measured anew for every release."""
        return None if self.sensitivity is None else self.multiplier * self.sensitivity

    @property
    def guarantee(self) -> str:
        """For which change of a client's data the epsilon holds."""
        if self.measured:
            return "none: the sensitivity was measured, not bounded"
        if self.unit == "row":
            return ROW_GUARANTEE
        return MESSAGE_GUARANTEE + (f" that leaves as it is: {self.beside}" if self.beside else "")


def senders(method: Method) -> dict[str, tuple[str, ...]]:
    """The fields that leave a client, and the steps that send them."""
    found: dict[str, tuple[str, ...]] = {}
    for name in dir(type(method)):
        messages = getattr(getattr(type(method), name), "messages", None)
        for field in messages.up if isinstance(messages, Messages) else ():
            found[field] = (*found.get(field, ()), name)
    return found


def resolve(
    asked: Mapping[str, Asked], method: Method, schedule: Schedule, multipliers: Mapping[str, float] | None = None
) -> tuple[Protection, ...]:
    """How every field is protected. `multipliers` are those that were calibrated before, for the same config."""
    sent = senders(method)
    found = []
    for field, wanted in asked.items():
        if field not in sent:
            raise InputError(f"privacy: {method.name} sends no field '{field}'; {nearest(field, sent)}")
        found.append(_resolved(field, wanted, method, sent[field], schedule, (multipliers or {}).get(field)))
    _check_counts(found)
    return tuple(found)


def _resolved(
    field: str, asked: Asked, method: Method, steps: tuple[str, ...], schedule: Schedule, multiplier: float | None
) -> Protection:
    kinds = [getattr(type(method), name).messages.up[field] for name in steps]
    by_row = all(_has_rows(kind, method) for kind in kinds)
    unit: Unit = asked.unit if asked.unit != "auto" else "row" if by_row else "message"
    _check_kind(field, kinds, unit, by_row)
    if asked.min_count is not None and not (unit == "row" and all(isinstance(kind, TableField) for kind in kinds)):
        raise InputError(
            f"privacy.{field}.min_count is for class means protected row by row, which '{field}' does not have or "
            "which unit: message is not"
        )
    if asked.relative_to is not None:
        for name in steps:
            down = getattr(type(method), name).messages.down
            if asked.relative_to not in down:
                raise InputError(
                    f"privacy.{field}.relative_to is '{asked.relative_to}', which step '{name}' does not receive; "
                    f"{nearest(asked.relative_to, down)}"
                )
    measured = asked.sensitivity == "measured"
    # every step once a round, and once more where the method has something to finish
    finishes = type(method).finish is not Method.finish
    limit = asked.releases or (schedule.rounds + finishes) * len(steps)
    whole_run = asked.epsilon is not None and not asked.per_release and not measured
    limit *= schedule.attempts  # a round that is tried again may release other values
    planned = limit if whole_run else None
    if multiplier is None:
        multiplier = _multiplier(field, asked, planned)
    return Protection(
        field,
        steps,
        asked.clip,
        multiplier,
        asked.delta,
        unit,
        asked.min_count,
        asked.relative_to,
        measured,
        limit if whole_run or asked.releases else None,
        planned,
        asked.releases is not None or finishes,
        _beside(kinds),
    )


def _multiplier(field: str, asked: Asked, planned: int | None) -> float:
    if asked.noise is not None:
        return asked.noise
    if asked.epsilon is None:
        raise InputError(f"privacy.{field} has neither epsilon nor noise; give one of them")
    if asked.sensitivity == "measured":
        return classic_multiplier(asked.epsilon, asked.delta)
    return accountant.multiplier(asked.epsilon, asked.delta, planned or 1)


def _has_rows(kind: Field, method: Method) -> bool:
    """Rows of which one sample touches one at most: only then is 2 clip what it can move in all of them together."""
    rows = isinstance(kind, TableField) or (isinstance(kind, TensorField) and len(kind.dims) > 1)
    return rows and kind.has_own_rows(method)


def _beside(kinds: list[Field]) -> str:
    """What noise does not touch in a protected field."""
    found = []
    if any(isinstance(kind, TableField) for kind in kinds):
        found.append("which classes have a row")
    if any(isinstance(kind, TableField) and kind.counts for kind in kinds):
        found.append("how many samples are behind it")
    if any(isinstance(kind, TensorField) and not all(_is_common(dim) for dim in kind.dims) for kind in kinds):
        found.append("how many rows there are")
    if any(isinstance(kind, WeightsField | TreeField) for kind in kinds):
        found.append("how many batches BatchNorm has counted")
    if any(kind.optional for kind in kinds):
        found.append("whether the field is there")
    return ", and ".join(found)


def _is_common(dim: Dim) -> bool:
    """Whether a dimension is the same for every client with this model, whatever its data."""
    return isinstance(dim, int) or dim in ("classes", "features")


def _check_kind(field: str, kinds: list[Field], unit: Unit, by_row: bool) -> None:
    for kind in kinds:
        if isinstance(kind, ScalarField):
            raise InputError(f"privacy: '{field}' is one {kind.kind}; tables, tensors and weights can be protected")
        if isinstance(kind, TensorField | TableField) and not kind.dtype.is_floating_point:
            raise InputError(f"privacy: '{field}' holds {kind.dtype}, which noise cannot protect; only floats can be")
    if unit == "row" and not by_row:
        raise InputError(
            f"privacy.{field}.unit is 'row', but '{field}' has no rows of which one sample touches one at most; use "
            "'message'"
        )


def _check_counts(found: list[Protection]) -> None:
    """A step makes all its class means alike."""
    by_step: dict[str, Protection] = {}
    for one in found:
        for name in one.steps if one.min_count is not None else ():
            other = by_step.setdefault(name, one)
            if other.bound != one.bound:
                raise InputError(
                    f"privacy: '{other.field}' and '{one.field}' leave with the same step and both have min_count, "
                    f"so they need the same clip and min_count; found {other.clip:g} with {other.min_count} and "
                    f"{one.clip:g} with {one.min_count}"
                )
