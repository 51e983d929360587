"""Encoding of payloads: safetensors for tensors, JSON for the rest, and a digest of both. Pickle is never used.

A frame is `PF1\\0 | sha256 of the rest | length of the JSON (8 bytes, little endian) | JSON | safetensors`.
The JSON holds the scalars and the classes of every class table. The size of a field (`Frame.fields`) is the size of
its tensors in bytes; the rest of the frame is overhead.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.payload import Payload, Scalar, Value
from polyfed.errors import PayloadError

MAGIC = b"PF1\0"
_START = len(MAGIC) + 32
# Limits of headers. They are checked first, so that the work of reading a message stays linear in its size.
MAX_HEADER = 64 << 20  # bytes of each of the two JSON headers
MAX_DIMS = 16  # of a tensor
MAX_SIZE = 1 << 40  # along one dimension
MAX_NAME = 1024  # characters of a path
# dtypes that messages may contain, by their safetensors names, and their sizes in bytes
TYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


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
        return self.data[len(MAGIC) : _START].hex()


@dataclass(frozen=True)
class TensorHeader:
    """Type and shape of one tensor, from the header of a message."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class MessageHeader:
    """Description of a message, read from its headers before a tensor is created."""

    tensors: dict[str, TensorHeader]  # by path, 'field/name'
    tables: dict[str, tuple[tuple[int, ...], bool]]  # path -> (classes, has counts)
    scalars: dict[str, Scalar]
    empty: tuple[str, ...]  # paths of mappings without entries

    def joined(self, other: MessageHeader) -> MessageHeader:
        """Return the header of this and another frame together, as one message."""
        return MessageHeader(
            self.tensors | other.tensors,
            self.tables | other.tables,
            self.scalars | other.scalars,
            self.empty + other.empty,
        )

    def sizes(self) -> dict[str, int]:
        """Return the size of every field: the bytes of its tensors."""
        fields = {field_of(path): 0 for path in (*self.scalars, *self.tables, *self.empty)}
        for path, item in self.tensors.items():
            fields[field_of(path)] = fields.get(field_of(path), 0) + math.prod(item.shape) * TYPES[item.dtype]
        return fields

    def shapes(self) -> dict[str, str]:
        """Return a readable shape of every field: '3 rows of 64', '128 x 10', '4 tensors', 'a scalar'."""
        words: dict[str, str] = {}
        for name in self.sizes():
            inside = [path for path in self.tensors if path.startswith(name + "/")]
            if name in self.tables:
                words[name] = f"{len(self.tables[name][0])} rows of {self.tensors[name + '#values'].shape[-1]}"
            elif name in self.tensors:
                words[name] = " x ".join(map(str, self.tensors[name].shape)) or "one number"
            else:
                words[name] = f"{len(inside)} tensors" if inside else "a scalar"
        return words


def field_of(path: str) -> str:
    """Return the top-level field of a path."""
    return path.split("/")[0].split("#")[0]


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


def read_header(data: bytes, *, limit: int | None = None) -> MessageHeader:
    """Check a frame's size, digest and headers, and return its header. No tensor is created."""
    if limit is not None and len(data) > limit:
        raise PayloadError(f"the message has {len(data):,} bytes; at most {limit:,} are allowed")
    if len(data) < _START + 16 or not data.startswith(MAGIC):
        raise PayloadError(f"not a polyfed message: {len(data)} bytes that begin with {bytes(data[:4])!r}")
    if hashlib.sha256(memoryview(data)[_START:]).digest() != data[len(MAGIC) : _START]:
        raise PayloadError("the message is damaged: its digest does not match its content")
    try:
        head_end = _header_end(data, _START)
        head = json.loads(data[_START + 8 : head_end])
        tensor_end = _header_end(data, head_end)
        entries = json.loads(data[head_end + 8 : tensor_end])
        tensors = {
            path: TensorHeader(str(item["dtype"]), _shape(item["shape"]))
            for path, item in entries.items()
            if path != "__metadata__"
        }
        tables = {
            str(path): (tuple(_natural(c) for c in classes), bool(counted))
            for path, (classes, counted) in head["tables"].items()
        }
        scalars: dict[str, Scalar] = dict(head["scalars"].items())
        empty = tuple(str(path) for path in head["empty"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PayloadError(f"the message is malformed: {str(error)[:200]}") from None
    unknown = {item.dtype for item in tensors.values()} - set(TYPES)
    if unknown:
        raise PayloadError(f"the message holds numbers of type {unknown.pop()[:40]}; allowed are {', '.join(TYPES)}")
    size = sum(math.prod(item.shape) * TYPES[item.dtype] for item in tensors.values())
    if size != len(data) - tensor_end:
        raise PayloadError(f"the message announces {size:,} bytes of tensors and holds {len(data) - tensor_end:,}")
    header = MessageHeader(tensors, tables, scalars, empty)
    _check_paths(header)
    return header


def _header_end(data: bytes, start: int) -> int:
    """Return the end of the JSON header that begins at `start` with its length."""
    length = int.from_bytes(data[start : start + 8], "little")
    if length > MAX_HEADER:
        raise ValueError(f"a header of {length:,} bytes, at most {MAX_HEADER:,} are allowed")
    return start + 8 + length


def _shape(sizes: list[object]) -> tuple[int, ...]:
    if len(sizes) > MAX_DIMS:
        raise ValueError(f"a tensor of {len(sizes)} dimensions, at most {MAX_DIMS} are allowed")
    return tuple(_natural(size) for size in sizes)


def _natural(number: object) -> int:
    """Return a size or a class label. Raise ValueError for anything but an integer in the allowed range."""
    if type(number) is not int or not 0 <= number <= MAX_SIZE:
        raise ValueError("a size or class label that is not an integer in the allowed range")
    return number


def _check_paths(header: MessageHeader) -> None:
    """Raise PayloadError if a path is used twice, or if a class table is incomplete."""
    parts = {path for path in header.tensors if "#" in path}
    owned = {path + "#values" for path in header.tables} | {
        p + "#counts" for p, (_, counted) in header.tables.items() if counted
    }
    for path in sorted(parts ^ owned):
        raise PayloadError(f"the message is malformed: the table '{path.split('#')[0]}' is incomplete")
    seen: set[str] = set()
    for path in (*(header.tensors.keys() - parts), *header.tables, *header.scalars, *header.empty):
        if len(path) > MAX_NAME:
            raise PayloadError(f"the message is malformed: a name has {len(path):,} characters")
        if "#" in path or not all(path.split("/")):
            raise PayloadError(f"the message is malformed: '{path}' is not a valid name")
        if path in seen:
            raise PayloadError(f"the message is malformed: '{path}' occurs twice")
        seen.add(path)
    for path, value in header.scalars.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise PayloadError(f"the message is malformed: '{path}' is a {type(value).__name__}, not a JSON scalar")
    for path, (classes, _) in header.tables.items():
        if any(label >= 1 << 31 for label in classes):
            raise PayloadError(f"the message is malformed: the table '{path}' has a row for class {max(classes)}")


def decode(data: bytes, header: MessageHeader | None = None) -> Payload:
    """Decode a frame. Tensors are copies with their own memory."""
    header = header or read_header(data)
    start = _START + 8 + int.from_bytes(data[_START : _START + 8], "little")
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
