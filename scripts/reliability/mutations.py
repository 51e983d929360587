"""Random mutations of encoded messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from polyfed.core.frame_digest import SHA256, START

ODD_VALUES: tuple[Any, ...] = (None, True, -1, 0, 10**400, 1e308, "", "x" * 5000, [], {}, [[]] * 100, {"a": {}})


def mutated(frame: bytes, stream: np.random.Generator) -> bytes:
    """Return a frame with a flipped bit, a cut, additional bytes, another length field or overwritten bytes."""
    kind = stream.integers(5)
    at = int(stream.integers(len(frame)))
    if kind == 0:
        return frame[:at] + bytes([frame[at] ^ (1 << int(stream.integers(8)))]) + frame[at + 1 :]
    if kind == 1:
        return frame[:at]
    if kind == 2:
        return frame + stream.bytes(int(stream.integers(1, 40)))
    if kind == 3:  # a length field of up to 2^63, in either of the two places where there is one
        head = int.from_bytes(frame[START : START + 8], "little")
        place = START if stream.integers(2) else START + 8 + head
        return frame[:place] + (1 << int(stream.integers(64))).to_bytes(8, "little") + frame[place + 8 :]
    size = int(stream.integers(1, 20))
    return frame[:at] + stream.bytes(size) + frame[at + size :]


def with_valid_digest(frame: bytes) -> bytes:
    """Return a mutated frame with the digest of its body, as an attacker would send it."""
    body = frame[START:]
    return SHA256.magic + SHA256.compute((body,)) + body


def mutated_json(value: Any, stream: np.random.Generator) -> Any:
    """Return a JSON value in which one value, anywhere inside, is replaced or removed."""
    if isinstance(value, dict) and value and stream.integers(4):
        key = list(value)[int(stream.integers(len(value)))]
        if not stream.integers(6):
            return {name: entry for name, entry in value.items() if name != key}
        return {**value, key: mutated_json(value[key], stream)}
    if isinstance(value, list) and value and stream.integers(4):
        at = int(stream.integers(len(value)))
        return [*value[:at], mutated_json(value[at], stream), *value[at + 1 :]]
    if isinstance(value, str) and value and stream.integers(2):
        at = int(stream.integers(len(value)))
        return value[:at] + chr(int(stream.integers(1, 0x3000))) + value[at + 1 :]
    return json.loads(json.dumps(ODD_VALUES[int(stream.integers(len(ODD_VALUES)))]))
