"""Encoding of payloads: safetensors for tensors, JSON for the rest, and a digest of both. Pickle is never used.

A frame is `PF1\\0 | sha256 of the rest | length of the JSON (8 bytes, little endian) | JSON | safetensors`.
The JSON holds the scalars and the classes of every class table. The size of a field (`Frame.fields`) is the size of
its tensors in bytes; the rest of the frame is overhead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.message_header import DTYPES, MAGIC, START, MessageHeader, field_of, read_header
from polyfed.core.payload import Payload, Scalar, Value
from polyfed.errors import PayloadError


@dataclass(frozen=True)
class Frame:
    """An encoded payload and the size of each of its fields in bytes."""

    data: bytes
    fields: dict[str, int]

    @property
    def overhead(self) -> int:
        return len(self.data) - sum(self.fields.values())

    @property
    def digest(self) -> str:
        return self.data[len(MAGIC) : START].hex()


def encode(payload: Mapping[str, Value]) -> Frame:
    """Encode a payload. Raise PayloadError if it holds anything but tensors, class tables and JSON scalars."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Scalar] = {}
    tables: dict[str, list[object]] = {}
    empty: list[str] = []

    def walk(path: str, value: object) -> None:
        if isinstance(value, Tensor):
            tensors[path] = _contiguous(path, value)
        elif isinstance(value, ClassTable):
            tables[path] = [value.classes.tolist(), value.counts is not None]
            tensors[path + "#values"] = _contiguous(path, value.values)
            if value.counts is not None:
                tensors[path + "#counts"] = value.counts.to(torch.int32)
        elif isinstance(value, Mapping):
            if not value:
                empty.append(path)
            for key, item in value.items():
                walk(f"{path}/{_key(path, key)}", item)
        elif value is None or isinstance(value, bool | int | float | str):
            scalars[path] = value
        else:
            raise PayloadError(
                f"the field '{path}' is a {type(value).__name__}; only tensors, class tables, JSON scalars "
                "and mappings of them can be sent or saved"
            )

    for name, value in payload.items():
        walk(_key("", name), value)
    head = json.dumps(
        {"scalars": scalars, "tables": tables, "empty": sorted(empty)}, sort_keys=True, separators=(",", ":")
    ).encode()
    body = len(head).to_bytes(8, "little") + head + _pack(tensors)
    fields: dict[str, int] = dict.fromkeys(payload, 0)
    for path, tensor in tensors.items():
        fields[field_of(path)] += tensor.numel() * tensor.element_size()
    return Frame(MAGIC + hashlib.sha256(body).digest() + body, fields)


def encode_each(each: Mapping[str, Mapping[str, Value]]) -> dict[str, Frame]:
    """Encode every client's message. A message object that several clients share is encoded once."""
    frames: dict[int, Frame] = {}
    return {
        name: frames[id(payload)] if id(payload) in frames else frames.setdefault(id(payload), encode(payload))
        for name, payload in each.items()
    }


def _pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialise tensors from their memory. For small tensors, safetensors.torch takes several times as long."""
    return bytes(
        safetensors.serialize(
            {
                path: safetensors.TensorSpec(
                    dtype=str(t.dtype).removeprefix("torch."),
                    shape=t.shape,
                    data_ptr=t.data_ptr(),
                    data_len=t.numel() * t.element_size(),
                )
                for path, t in sorted(tensors.items())
            }
        )
    )


def decode(data: bytes, header: MessageHeader | None = None) -> Payload:
    """Decode a frame. Tensors are copies with their own memory."""
    header = header or read_header(data)
    start = START + 8 + int.from_bytes(data[START : START + 8], "little")
    try:
        raw = safetensors.torch.load(data[start:])
    except Exception as error:  # safetensors raises its own types for malformed headers
        raise PayloadError(f"the message is malformed: {error}") from None
    # The memory of a copy has the alignment of torch's allocator. Vectorised kernels then treat a received tensor
    # exactly like a computed one, which makes results bit-identical on every engine.
    tensors = {path: tensor.clone() for path, tensor in raw.items()}
    values: dict[str, Value] = {path: t for path, t in tensors.items() if "#" not in path}
    for path, (classes, counted) in header.tables.items():
        counts = tensors[path + "#counts"].to(torch.int64) if counted else None
        values[path] = ClassTable(torch.tensor(classes, dtype=torch.int64), tensors[path + "#values"], counts)
    values.update(header.scalars)
    values.update({path: {} for path in header.empty})
    return Payload(_nest(values))


def content_hash(payload: Mapping[str, Value]) -> str:
    """Return a hash of the content, independent of the memory layout."""
    return encode(payload).digest


def _nest(flat: Mapping[str, Value]) -> dict[str, Value]:
    tree: dict[str, Value] = {}
    for path in sorted(flat):
        *folders, leaf = path.split("/")
        node = tree
        for folder in folders:
            inner = node.setdefault(folder, {})
            if not isinstance(inner, dict):
                raise PayloadError(f"the message is malformed: '{path}' is inside a value that is not a mapping")
            node = inner
        node[leaf] = flat[path]
    return tree


def _key(path: str, key: object) -> str:
    if not isinstance(key, str) or not key or "/" in key or "#" in key:
        raise PayloadError(f"the name {key!r} in '{path}' cannot be sent: names are strings without '/' and '#'")
    return key


def _contiguous(path: str, tensor: Tensor) -> Tensor:
    """Return the tensor on the CPU, contiguous and without gradient."""
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
        raise PayloadError(f"the field '{path}' is a {tensor.layout} tensor of {tensor.dtype}, which cannot be sent")
    return tensor.detach().cpu().contiguous()
