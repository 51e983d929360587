"""Headers of messages: what a message holds, read and checked before a tensor is created.

`core/codec.py` describes the format. Limits are checked before anything else, and every check takes linear time.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import torch

from polyfed.core.frame_digest import START, check_digest
from polyfed.core.payload import Scalar
from polyfed.errors import PayloadError

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
class TensorHeader:
    """Type and shape of one tensor, from the header of a message."""

    dtype: str
    shape: tuple[int, ...]
    offset: int = field(default=0, compare=False, repr=False)  # of its first byte, from the first tensor's


@dataclass(frozen=True)
class MessageHeader:
    """Description of a message, read from its headers before a tensor is created."""

    tensors: dict[str, TensorHeader]  # by path, 'field/name'
    tables: dict[str, tuple[tuple[int, ...], bool]]  # path -> (classes, has counts)
    scalars: dict[str, Scalar]
    empty: tuple[str, ...]  # paths of mappings without entries
    data_start: int = 0  # of the tensors in the frame

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


def read_header(data: bytes, *, limit: int | None = None, cryptographic: bool = False) -> MessageHeader:
    """Check a frame's size, digest and headers, and return its header. No tensor is created.

    With `cryptographic`, raise PayloadError for a digest that only detects accidental damage.
    """
    if limit is not None and len(data) > limit:
        raise PayloadError(f"the message has {len(data):,} bytes; at most {limit:,} are allowed")
    check_digest(data, cryptographic=cryptographic)
    try:
        head_end = _header_end(data, START)
        head = json.loads(str(data[START + 8 : head_end], "utf-8"))
        tensor_end = _header_end(data, head_end)
        entries = json.loads(str(data[head_end + 8 : tensor_end], "utf-8"))
        tensors = {
            path: TensorHeader(str(item["dtype"]), _shape(item["shape"]), _natural(item["data_offsets"][0]))
            for path, item in entries.items()
            if path != "__metadata__"
        }
        tables = {
            str(path): (tuple(_natural(c) for c in classes), bool(counted))
            for path, (classes, counted) in head["tables"].items()
        }
        scalars: dict[str, Scalar] = dict(head["scalars"].items())
        empty = tuple(str(path) for path in head["empty"])
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PayloadError(f"the message is malformed: {str(error)[:200]}") from None
    unknown = {item.dtype for item in tensors.values()} - set(TYPES)
    if unknown:
        raise PayloadError(f"the message holds numbers of type {unknown.pop()[:40]}; allowed are {', '.join(TYPES)}")
    size = 0
    for item in sorted(tensors.values(), key=lambda item: (item.offset, math.prod(item.shape))):
        if item.offset != size:
            raise PayloadError("the message is malformed: its tensors overlap or leave gaps")
        size += math.prod(item.shape) * TYPES[item.dtype]
    if size != len(data) - tensor_end:
        raise PayloadError(f"the message announces {size:,} bytes of tensors and holds {len(data) - tensor_end:,}")
    header = MessageHeader(tensors, tables, scalars, empty, tensor_end)
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
