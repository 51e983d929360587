"""Checks of messages: unchanged by steps, serialisable, refused if invalid, and counted correctly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.client_profile import Profile
from polyfed.core.codec import content_hash, decode, encode
from polyfed.core.finite_values import check_finite
from polyfed.core.message_header import read_header
from polyfed.core.payload import Payload
from polyfed.core.schema import Schema, TreeField, check_header
from polyfed.core.step import Reply, combined
from polyfed.errors import PayloadError
from polyfed.testing.battery import check
from polyfed.testing.engine_wrappers import each_tensor, with_wrapped_steps
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation


@check
def inputs_not_modified(toy: ToyFederation) -> None:
    """A step does not change the message it receives. Other clients get the same tensors."""
    changed: list[str] = []

    def wrapper(name: str, client: Client, msg: Payload, body: Any) -> Reply | None:
        before = content_hash(msg)
        reply: Reply | None = body()
        if content_hash(msg) != before:
            changed.append(name)
        return reply

    toy.run(toy.config(CLASS_COUNTS[:3]), method=with_wrapped_steps(toy.method, wrapper)(**toy.fields)).checked()
    assert not changed, f"the step '{changed[0]}' changes the message that it receives"


@check
def only_tensors_and_scalars(toy: ToyFederation) -> None:
    """Replies and states hold tensors, class tables, JSON scalars and mappings of them, and can be encoded."""
    errors: list[str] = []

    def wrapper(name: str, client: Client, msg: Payload, body: Any) -> Reply | None:
        reply: Reply | None = body()
        for where, tree in (("reply", reply or {}), ("state", client.state)):
            errors.extend(f"the {where} of step '{name}' holds {item}" for item in _invalid_values("", tree))
            try:
                if content_hash(decode(encode(tree).data)) != content_hash(tree):
                    errors.append(f"the {where} of step '{name}' is not the same after encoding")
            except PayloadError as error:
                errors.append(f"the {where} of step '{name}' cannot be encoded: {error}")
        return reply

    outcome = toy.run(toy.config(CLASS_COUNTS[:3]), method=with_wrapped_steps(toy.method, wrapper)(**toy.fields))
    errors.extend(f"the server's state holds {item}" for item in _invalid_values("", outcome.server))
    assert not errors, errors[0]
    outcome.checked()


def _invalid_values(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _invalid_values(f"{path}/{key}", item)
    elif isinstance(value, Tensor):
        if value.requires_grad:
            yield f"'{path}', a tensor that still requires a gradient"
    elif not (value is None or isinstance(value, ClassTable | bool | int | float | str)):
        yield f"'{path}', a {type(value).__name__}"


@check
def invalid_messages_refused(toy: ToyFederation) -> None:
    """NaN, wrong shapes, missing and unknown fields are refused in both directions, with the field's name."""
    reference = toy.reference()
    federation = toy.federation(toy.config())
    profiles = {profile.name: profile for profile in federation.profiles()}
    for direction, messages in (("up", reference.up), ("down", reference.down)):
        for message in messages:
            schema: Schema = getattr(combined(federation.method, message.steps), direction)
            fields = {name: value for frame in message.frames for name, value in decode(frame).items()}
            profile = profiles[message.client]
            refused = _refusal(fields, schema, federation.method, profile)
            assert refused is None, f"a valid message of '{message.steps[0]}' is refused: {refused}"
            for change, name, altered in _invalid_messages(fields, schema):
                error = _refusal(altered, schema, federation.method, profile)
                assert error is not None, f"{direction}: {change} in the field '{name}' was accepted"
                assert f"'{name}'" in error or f"'{name}/" in error, (
                    f"{direction}: {change} in '{name}' is refused without its name: {error}"
                )


def _invalid_messages(fields: dict[str, Any], schema: Schema) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "an unknown field", "stray", {**fields, "stray": torch.zeros(2)}
    for name, value in fields.items():
        if not schema[name].optional:
            yield "its absence", name, {k: v for k, v in fields.items() if k != name}
        if _holds_numbers(value):
            altered = each_tensor(value, lambda t: t * torch.nan if t.is_floating_point() else t)
            yield "NaN", name, {**fields, name: altered}
        if not isinstance(schema[name], TreeField) and _holds_tensors(value):  # a tree has any shapes
            yield "a wrong shape", name, {**fields, name: each_tensor(value, _wider)}


def _wider(tensor: Tensor) -> Tensor:
    """Return a tensor with twice as many numbers along the last axis."""
    return torch.cat([tensor, tensor], -1) if tensor.ndim else torch.stack([tensor, tensor])


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    tensor = value.values if isinstance(value, ClassTable) else value
    return [tensor] if isinstance(tensor, Tensor) else []


def _holds_tensors(value: object) -> bool:
    return bool(_tensors(value))


def _holds_numbers(value: object) -> bool:
    return any(t.is_floating_point() and t.numel() for t in _tensors(value))


def _refusal(fields: Mapping[str, Any], schema: Schema, method: object, profile: Profile) -> str | None:
    """Return why a message is refused, or None. The checks and their order are those of `core.door`."""
    frame = encode(fields).data
    try:
        header = read_header(frame)
        check_header(header, schema, method, profile)
        check_finite(decode(frame, header))
    except PayloadError as error:
        return str(error)
    return None


@check
def bytes_counted_as_sent(toy: ToyFederation) -> None:
    """The counted bytes are exactly those that were sent to and received from the engine."""
    reference = toy.reference()
    for direction, messages in (("up", reference.up), ("down", reference.down)):
        sent = sum(len(frame) for message in messages for frame in message.frames)
        fields = sum(sum(getattr(stats, direction).values()) for stats in reference.round_stats)
        overhead = sum(getattr(stats, f"overhead_{direction}") for stats in reference.round_stats)
        assert sent == fields + overhead, f"{direction}: {sent} bytes sent, but {fields} + {overhead} counted"
        tensors = sum(sum(read_header(frame).sizes().values()) for message in messages for frame in message.frames)
        assert tensors == fields, f"{direction}: fields of {tensors} bytes were sent, but {fields} were counted"
