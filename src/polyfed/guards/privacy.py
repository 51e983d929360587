"""Differential privacy at the client: clip, add noise and count releases, before a reply is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.engine import Call
from polyfed.core.guard import Released
from polyfed.core.payload import Payload, Value
from polyfed.guards.clipping import PrivacyError, as_rows, clip_rows, from_rows, protected_tensors
from polyfed.guards.noise import digest, gaussian, release_id
from polyfed.guards.protections import Protection
from polyfed.guards.sensitivity import measured_sensitivity


@dataclass(frozen=True)
class PrivacyGuard:
    """Protects the configured fields of a reply. Other fields are not changed.

    The noise is named by the secret, client, round, step, protected value and standard deviation. A repeated call
    therefore sends the same bytes. A different value, for example in a repeated round with other clients, or a
    different amount of noise gets new noise, because noise that is used twice could be subtracted.
    """

    protections: tuple[Protection, ...]
    exposed: frozenset[str] = frozenset()  # other fields that void the epsilon if they are uploaded
    secret: str = ""  # of the site for this run; without one, the noise follows from the run's seed

    def prepare(self, client: Client, call: Call) -> None:
        bounds = [p.bound for p in self.protections if p.bound is not None and set(p.steps) & set(call.steps)]
        client.bound = bounds[0] if bounds else None

    def protect(
        self, client: Client, call: Call, reply: Mapping[str, Value], msg: Payload, released: Released
    ) -> tuple[dict[str, Value], Released]:
        protected, releases = dict(reply), dict(released)
        for one in self.protections:
            if one.field in reply:
                before = releases.get(one.field, ())
                protected[one.field], release = self._protect_field(one, client, call, reply[one.field], msg)
                if release not in before:  # otherwise it is bit-identical to an earlier release
                    self._check_limit(one, call, len(before))
                    releases[one.field] = [*before, release]
        return protected, releases

    def _check_limit(self, one: Protection, call: Call, before: int) -> None:
        """Raise PrivacyError if there would be more releases than the noise was calibrated for."""
        if one.limit is None:
            return
        repeated = any(
            name in one.steps and "." in label for name, label in zip(call.steps, call.labels, strict=True)
        )
        if before >= one.limit or (repeated and not one.counted):
            raise PrivacyError(
                f"field '{one.field}' would be sent more often than its noise allows ({one.limit} times); "
                f"set privacy.{one.field}.releases to how often a client sends it in the whole run"
            )

    def _protect_field(
        self, one: Protection, client: Client, call: Call, value: Value, msg: Payload
    ) -> tuple[Value, str]:
        """Return the protected field and the id of this release."""
        label = "+".join(call.labels)
        if one.bound is not None and not (isinstance(value, ClassTable) and value.bound == one.bound):
            raise PrivacyError(
                f"field '{one.field}' does not hold means of clipped samples, so privacy.{one.field}.min_count "
                "does not work with these settings of the method; remove min_count"
            )
        rows = as_rows(one.field, value, one.unit)
        base = _base(one, value, msg)
        rows = rows if base is None else rows - base
        if one.clip is not None:
            rows = clip_rows(rows, one.clip)
        sigma = one.sigma
        if sigma is None:
            sigma = one.multiplier * measured_sensitivity(client, one.field, rows.shape[1], label)
        details = (repr(sigma), one.unit, str(tuple(rows.shape)))
        name = (
            self.secret,
            client.seed,
            "privacy",
            one.field,
            client.name,
            call.round,
            label,
            digest(rows),
            *details,
        )
        noisy = rows + sigma * gaussian(rows.numel(), *name).reshape(rows.shape)
        return from_rows(one.field, value, noisy if base is None else noisy + base), release_id(*name)


def _base(one: Protection, value: Value, msg: Payload) -> Tensor | None:
    """Return the received value that the field is relative to. The server knows it, so it needs no protection."""
    if one.relative_to is None:
        return None
    base = msg[one.relative_to]
    if _shapes(one.field, base) != _shapes(one.field, value):
        raise PrivacyError(
            f"field '{one.field}' and '{one.relative_to}', which it is relative to, hold different tensors"
        )
    return as_rows(one.field, base, one.unit)


def _shapes(name: str, value: Value) -> list[object]:
    if isinstance(value, ClassTable):
        return [value.classes.tolist(), value.values.shape]
    return [(path, tensor.shape) for path, tensor in protected_tensors(name, value)]
