"""Differential privacy at the client: clip, add noise, count. It acts on a reply before a byte of it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.engine import Call
from polyfed.core.guard import Released
from polyfed.core.payload import Payload, Value
from polyfed.guards.clipping import PrivacyError, as_rows, clip_rows, from_rows, leaves
from polyfed.guards.noise import digest, gaussian, short_name
from polyfed.guards.protections import Protection
from polyfed.guards.sensitivity import measured_sensitivity


@dataclass(frozen=True)
class PrivacyGuard:
    """Protects the fields that it knows; other fields of a reply pass as they are.

    Noise is drawn under the client's, the round's and the step's names, the secret, the value that it hides and its
    own deviation. The same call repeated gives the same bytes; another value under the same names, as when a round is
    repeated with other clients, or the same value with more or less noise, as in another run, gets noise of its own,
    since noise used twice could be subtracted.
    """

    protections: tuple[Protection, ...]
    secret: str = ""  # of the client's owner for this run; without one, who knows the run's seed knows the noise

    def prepare(self, client: Client, call: Call) -> None:
        bounds = [p.bound for p in self.protections if p.bound is not None and set(p.steps) & set(call.steps)]
        client.bound = bounds[0] if bounds else None

    def protect(
        self, client: Client, call: Call, reply: Mapping[str, Value], msg: Payload, released: Released
    ) -> tuple[dict[str, Value], Released]:
        made, known = dict(reply), dict(released)
        for one in self.protections:
            if one.field in reply:
                before = known.get(one.field, ())
                made[one.field], release = self._protected(one, client, call, reply[one.field], msg)
                if release not in before:  # else it is what left before, bit by bit
                    self._check_plan(one, call, len(before))
                    known[one.field] = [*before, release]
        return made, known

    def _check_plan(self, one: Protection, call: Call, before: int) -> None:
        """No release beyond those that the noise was calibrated for."""
        if one.limit is None:
            return
        again = any(name in one.steps and "." in label for name, label in zip(call.steps, call.labels, strict=True))
        if before >= one.limit or (again and not one.counted):
            raise PrivacyError(
                f"field '{one.field}' would leave more often than was planned for its noise ({one.limit} times); "
                f"set privacy.{one.field}.releases to how often a client sends it in the whole run"
            )

    def _protected(
        self, one: Protection, client: Client, call: Call, value: Value, msg: Payload
    ) -> tuple[Value, str]:
        """The field as it may leave, and what this release is called."""
        label = "+".join(call.labels)
        if one.bound is not None and not (isinstance(value, ClassTable) and value.bound == one.bound):
            raise PrivacyError(
                f"field '{one.field}' does not hold means of clipped samples, so privacy.{one.field}.min_count "
                "cannot be used with this method as it is set; leave min_count out"
            )
        rows = as_rows(one.field, value, one.unit)
        base = _base(one, value, msg)
        rows = rows if base is None else rows - base
        if one.clip is not None:
            rows = clip_rows(rows, one.clip)
        sigma = one.sigma
        if sigma is None:
            sigma = one.multiplier * measured_sensitivity(client, one.field, rows.shape[1], label)
        how = (repr(sigma), one.unit, str(tuple(rows.shape)))
        name = (self.secret, client.seed, "privacy", one.field, client.name, call.round, label, digest(rows), *how)
        noisy = rows + sigma * gaussian(rows.numel(), *name).reshape(rows.shape)
        return from_rows(one.field, value, noisy if base is None else noisy + base), short_name(*name)


def _base(one: Protection, value: Value, msg: Payload) -> Tensor | None:
    """What came down, from which an update is counted; the server knows it."""
    if one.relative_to is None:
        return None
    base = msg[one.relative_to]
    if _shapes(one.field, base) != _shapes(one.field, value):
        raise PrivacyError(
            f"field '{one.field}' and '{one.relative_to}', which it is to be relative to, hold different tensors"
        )
    return as_rows(one.field, base, one.unit)


def _shapes(name: str, value: Value) -> list[object]:
    if isinstance(value, ClassTable):
        return [value.classes.tolist(), value.values.shape]
    return [(path, tensor.shape) for path, tensor in leaves(name, value)]
