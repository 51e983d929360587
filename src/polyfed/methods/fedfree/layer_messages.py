"""Layers in messages and in the server's state, and the check of the layers that a client sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from polyfed.core.message_header import DTYPES, MessageHeader, TensorHeader
from polyfed.core.payload import Payload, Value
from polyfed.core.schema import CheckContext, Field, ScalarField, TreeField
from polyfed.errors import PayloadError
from polyfed.methods.fedfree.layers import KINDS, Layer

METADATA = {"name": ScalarField("text"), "kind": ScalarField("text")}
METADATA |= {name: ScalarField("number", least=0) for name in ("place", "depth", "change")}
TENSORS = ("weight", "bias")


@dataclass(frozen=True)
class LayersField(Field):
    """Packed layers of the client's model. Their names and shapes must match the model."""

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        model = {n: TensorHeader(DTYPES[getattr(torch, dtype)], shape) for n, shape, dtype in context.profile.model}
        paths = (*header.tensors, *header.scalars, *header.tables, *(path for path in header.empty if path != name))
        paths = tuple(path for path in paths if path == name or path.startswith(name + "/"))
        entries = {path.rpartition("/")[0] for path in paths}
        for path in paths:
            if path.count("/") != 2 or path.rpartition("/")[2] not in (*METADATA, *TENSORS):
                raise PayloadError(f"field '{name}' has '{path}', which is not part of a layer")
        for entry in sorted(entries):
            for key, field in METADATA.items():
                field.check(f"{entry}/{key}", header, context)
            layer, kind = header.scalars[f"{entry}/name"], str(header.scalars[f"{entry}/kind"])
            tensors = {key: header.tensors.get(f"{entry}/{key}") for key in TENSORS}
            if any(tensors[key] != model.get(f"{layer}.{key}") for key in tensors) or tensors["weight"] is None:
                raise PayloadError(f"field '{name}' has a layer '{layer}' that does not match the client's model")
            if KINDS.get(kind) != len(tensors["weight"].shape):
                raise PayloadError(f"field '{name}' has a layer '{layer}' with the wrong kind '{kind}'")


REQUEST = {"kinds": ScalarField("text")}
UPLOAD = {"layers": LayersField(), "not_finite": ScalarField(least=0)}
DOWNLOAD = {"layer": ScalarField("text", optional=True), "received": TreeField(optional=True)}


def pack_layers(layers: list[Layer]) -> dict[str, Value]:
    """Convert layers to a payload that keeps their order."""
    packed: dict[str, Value] = {}
    for layer in layers:
        metadata: dict[str, Value] = {
            "name": layer.name,
            "kind": layer.kind,
            "place": layer.index,
            "depth": layer.depth,
            "change": layer.change,
        }
        packed[f"{layer.index:06d}"] = metadata | dict(zip(TENSORS, layer.tensors, strict=False))
    return packed


def unpack_layers(packed: Value) -> list[Layer]:
    """Convert a payload of `pack_layers` back to layers, ordered by index."""
    entries = Payload(packed if isinstance(packed, Mapping) else {})
    layers = []
    for key in sorted(entries):
        value = entries[key]
        entry = Payload(value if isinstance(value, Mapping) else {})
        layers.append(
            Layer(
                entry.text("name"),
                entry.text("kind"),
                int(entry.number("place")),
                entry.number("depth"),
                entry.tensor("weight"),
                entry.tensor("bias") if "bias" in entry else None,
                entry.number("change"),
            )
        )
    return layers
