"""Encoding of payloads: safetensors for tensors, JSON for the rest, and a digest of both. Pickle is never used.

A frame is `PF1\\0 | sha256 of the rest | length of the JSON (8 bytes, little endian) | JSON | safetensors`. Messages
and states of one run begin with `PF2\\0`, messages to and from sites with `PF3\\0`, with another digest in that place
(`core/frame_digest.py`).
The JSON holds the scalars and the classes of every class table. The size of a field (`Frame.fields`) is the size of
its tensors in bytes; the rest of the frame is overhead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyfed import profiling
from polyfed.core.class_tables import ClassTable
from polyfed.core.frame_digest import MAGIC_SIZE, SHA256, START, FrameDigest
from polyfed.core.joined_bytes import join
from polyfed.core.message_header import DTYPES, MessageHeader, TensorHeader, field_of, read_header
from polyfed.core.payload import Payload, Scalar, Value
from polyfed.errors import PayloadError

# order of types in safetensors files: later members of its list of types come first
ALIGNMENT = {
    name: rank for rank, name in enumerate(("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64"))
}
LARGE = 1 << 18  # bytes of a tensor whose copy takes tens of microseconds
TORCH_TYPES = {name: dtype for dtype, name in DTYPES.items()}


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
        return self.data[MAGIC_SIZE:START].hex()


@dataclass(frozen=True)
class FrameParts:
    """A frame in parts: views of the payload's tensors, which must not change until the parts are written."""

    parts: Sequence[bytes | memoryview]  # the second one is the digest
    fields: dict[str, int]

    @property
    def digest(self) -> str:
        return bytes(self.parts[1]).hex()

    def __len__(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)


def encode(payload: Mapping[str, Value], digest: FrameDigest = SHA256) -> Frame:
    """Encode a payload. Raise PayloadError if it holds anything but tensors, class tables and JSON scalars."""
    with profiling.span("encode", "encode"):
        frame = _encode(payload, digest)
        return Frame(join(frame.parts), frame.fields)


def encode_in_parts(payload: Mapping[str, Value], digest: FrameDigest = SHA256) -> FrameParts:
    """Encode a payload without joining its parts, which saves a copy of its tensors."""
    with profiling.span("encode", "encode"):
        return _encode(payload, digest)


def _encode(payload: Mapping[str, Value], digest: FrameDigest) -> FrameParts:
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
                tensors[path + "#counts"] = _contiguous(path, value.counts).to(torch.int32)
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
    parts = [len(head).to_bytes(8, "little"), head, *_pack(tensors)]
    fields: dict[str, int] = dict.fromkeys(payload, 0)
    for path, tensor in tensors.items():
        fields[field_of(path)] += tensor.nbytes
    return FrameParts((digest.magic, digest.compute(parts), *parts), fields)


def encode_each(each: Mapping[str, Mapping[str, Value]], digest: FrameDigest = SHA256) -> dict[str, Frame]:
    """Encode every client's message. A message object that several clients share is encoded once."""
    frames: dict[int, Frame] = {}
    return {
        name: frames.get(id(payload)) or frames.setdefault(id(payload), encode(payload, digest))
        for name, payload in each.items()
    }


def _pack(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """Return the parts of a safetensors file: its header, and the memory of every tensor.

    The bytes are those of `safetensors.serialize`, which copies the tensors twice and takes three times as long.
    """
    # in the order of safetensors: by falling alignment, then by name
    ordered = sorted(tensors.items(), key=lambda item: (-ALIGNMENT[DTYPES[item[1].dtype]], item[0]))
    entries: dict[str, object] = {}
    parts: list[bytes | memoryview] = []
    offset = 0
    for path, tensor in ordered:
        end = offset + tensor.nbytes
        entries[path] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
        if tensor.numel():
            parts.append(_memory(tensor))
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little"), header, *parts]


def decode(data: bytes, header: MessageHeader | None = None) -> Payload:
    """Decode a frame. Tensors are copies with their own memory."""
    with profiling.span("decode", "decode"):
        return _decode(data, header)


def _decode(data: bytes, header: MessageHeader | None) -> Payload:
    header = header or read_header(data)
    tensors = {path: _read_tensor(data, header.data_start, tensor) for path, tensor in header.tensors.items()}
    values: dict[str, Value] = {path: t for path, t in tensors.items() if "#" not in path}
    for path, (classes, counted) in header.tables.items():
        counts = tensors[path + "#counts"].to(torch.int64) if counted else None
        values[path] = ClassTable(torch.tensor(classes, dtype=torch.int64), tensors[path + "#values"], counts)
    values.update(header.scalars)
    values.update({path: {} for path in header.empty})
    return Payload(_nest(values))


def _read_tensor(data: bytes, start: int, header: TensorHeader) -> Tensor:
    """Copy one tensor out of a frame whose tensors begin at `start`.

    The memory of a copy has the alignment of torch's allocator. Vectorised kernels then treat a received tensor
    exactly like a computed one, which makes results bit-identical on every engine.
    """
    tensor = torch.empty(header.shape, dtype=TORCH_TYPES[header.dtype])
    if tensor.numel():
        begin = start + header.offset
        target, source = _memory(tensor), memoryview(data)[begin : begin + tensor.nbytes]
        if tensor.nbytes < LARGE:
            target[:] = source
        else:  # numpy lets other threads run meanwhile, such as the gateway
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
    return tensor


def _memory(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor with at least one number."""
    values = tensor if tensor.dtype != torch.bfloat16 else tensor.view(torch.int16)  # numpy has no such type
    return values.numpy().data.cast("B")


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
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    return tensor if tensor.is_contiguous() else tensor.contiguous()
