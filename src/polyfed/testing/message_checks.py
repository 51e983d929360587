"""What crosses between server and clients: left unchanged, plain, refused by name when wrong, and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.codec import content_hash, decode, encode, read_header
from polyfed.core.payload import Payload
from polyfed.core.profile import Profile
from polyfed.core.schema import Schema, TreeField, check_finite, check_header
from polyfed.core.step import Reply, combined
from polyfed.errors import PayloadError
from polyfed.testing.battery import check
from polyfed.testing.engine_wrappers import each_tensor, with_wrapped_steps
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation


@check
def inputs_not_modified(toy: ToyFederation) -> None:
    """A step leaves the message it received as it was: other clients are handed the same tensors."""
    changed: list[str] = []

    def watch(name: str, client: Client, msg: Payload, body: Any) -> Reply | None:
        before = content_hash(msg)
        reply: Reply | None = body()
        if content_hash(msg) != before:
            changed.append(name)
        return reply

    toy.run(toy.config(CLASS_COUNTS[:3]), method=with_wrapped_steps(toy.method, watch)(**toy.fields)).checked()
    assert not changed, f"the step '{changed[0]}' changes the message that it received"


@check
def only_tensors_and_scalars(toy: ToyFederation) -> None:
    """Replies and states hold tensors, class tables, JSON scalars and mappings of them, and survive encoding."""
    wrong: list[str] = []

    def watch(name: str, client: Client, msg: Payload, body: Any) -> Reply | None:
        reply: Reply | None = body()
        for where, tree in (("reply", reply or {}), ("state", client.state)):
            wrong.extend(f"the {where} of step '{name}' holds {what}" for what in _strangers("", tree))
            try:
                if content_hash(decode(encode(tree).data)) != content_hash(tree):
                    wrong.append(f"the {where} of step '{name}' is not the same after encoding")
            except PayloadError as error:
                wrong.append(f"the {where} of step '{name}' cannot be encoded: {error}")
        return reply

    outcome = toy.run(toy.config(CLASS_COUNTS[:3]), method=with_wrapped_steps(toy.method, watch)(**toy.fields))
    wrong.extend(f"the server's state holds {what}" for what in _strangers("", outcome.server))
    assert not wrong, wrong[0]
    outcome.checked()


def _strangers(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strangers(f"{path}/{key}", item)
    elif isinstance(value, Tensor):
        if value.requires_grad:
            yield f"'{path}', a tensor that still requires a gradient"
    elif not (value is None or isinstance(value, ClassTable | bool | int | float | str)):
        yield f"'{path}', a {type(value).__name__}"


@check
def wrong_messages_refused_by_name(toy: ToyFederation) -> None:
    """NaN, wrong shapes, missing and unknown fields are refused in both directions, and the field is named."""
    reference = toy.reference()
    federation = toy.federation(toy.config())
    profiles = {profile.name: profile for profile in federation.profiles()}
    for way, seen in (("up", reference.up), ("down", reference.down)):
        for message in seen:
            schema: Schema = getattr(combined(federation.method, message.steps), way)
            fields = {name: value for frame in message.frames for name, value in decode(frame).items()}
            profile = profiles[message.client]
            refused = _refusal(fields, schema, federation.method, profile)
            assert refused is None, f"a right message of '{message.steps[0]}' is refused: {refused}"
            for what, name, altered in _wrongs(fields, schema):
                said = _refusal(altered, schema, federation.method, profile)
                assert said is not None, f"going {way}, {what} in the field '{name}' was accepted"
                assert f"'{name}'" in said or f"'{name}/" in said, (
                    f"going {way}, {what} in '{name}' is refused without its name: {said}"
                )


def _wrongs(fields: dict[str, Any], schema: Schema) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "an unknown field", "stray", {**fields, "stray": torch.zeros(2)}
    for name, value in fields.items():
        if not schema[name].optional:
            yield "its absence", name, {k: v for k, v in fields.items() if k != name}
        if _holds_numbers(value):
            spoiled = each_tensor(value, lambda t: t * torch.nan if t.is_floating_point() else t)
            yield "NaN", name, {**fields, name: spoiled}
        if not isinstance(schema[name], TreeField) and _holds_tensors(value):  # a tree's shapes only the method knows
            yield "a wrong shape", name, {**fields, name: each_tensor(value, _wider)}


def _wider(tensor: Tensor) -> Tensor:
    """Twice as many numbers along the last axis; a single number becomes two."""
    return torch.cat([tensor, tensor], -1) if tensor.ndim else torch.stack([tensor, tensor])


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    found = value.values if isinstance(value, ClassTable) else value
    return [found] if isinstance(found, Tensor) else []


def _holds_tensors(value: object) -> bool:
    return bool(_tensors(value))


def _holds_numbers(value: object) -> bool:
    return any(t.is_floating_point() and t.numel() for t in _tensors(value))


def _refusal(fields: Mapping[str, Any], schema: Schema, method: object, profile: Profile) -> str | None:
    """Why a message is refused; None if it is not. The same checks, in the same order, as at the door."""
    frame = encode(fields).data
    try:
        seen = read_header(frame)
        check_header(seen, schema, method, profile)
        check_finite(decode(frame, seen))
    except PayloadError as error:
        return str(error)
    return None


@check
def counted_bytes_are_the_sent_bytes(toy: ToyFederation) -> None:
    """What the run says it sent is, to the byte, what went to and came from the engine."""
    reference = toy.reference()
    for way, seen in (("up", reference.up), ("down", reference.down)):
        sent = sum(len(frame) for message in seen for frame in message.frames)
        fields = sum(sum(getattr(stats, way).values()) for stats in reference.round_stats)
        overhead = sum(getattr(stats, f"overhead_{way}") for stats in reference.round_stats)
        assert sent == fields + overhead, f"{sent} bytes went {way}, but {fields} + {overhead} were counted"
        tensors = sum(sum(read_header(frame).sizes().values()) for message in seen for frame in message.frames)
        assert tensors == fields, f"fields of {tensors} bytes went {way}, but {fields} were counted"
