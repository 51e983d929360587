"""Layers on their way: as a message or a state holds them, and what a client may say its layers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from polyfed.core.codec import DTYPES, MessageHeader, TensorHeader
from polyfed.core.payload import Payload, Value
from polyfed.core.schema import Field, ScalarField, _Site
from polyfed.errors import PayloadError
from polyfed.methods.fedfree.layers import KINDS, Layer

FACTS = {"name": ScalarField("text"), "kind": ScalarField("text")}
FACTS |= {fact: ScalarField("number", least=0) for fact in ("place", "depth", "change")}


@dataclass(frozen=True)
class Layers(Field):
    """Some layers of the client's model, packed: each has the shape that it has there, and its facts are sound."""

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        own = {n: TensorHeader(DTYPES[getattr(torch, dtype)], shape) for n, shape, dtype in site.profile.model}
        said = (*seen.tensors, *seen.scalars, *seen.tables, *(path for path in seen.empty if path != name))
        paths = [path for path in said if path == name or path.startswith(name + "/")]
        entries = {path.rpartition("/")[0] for path in paths}
        for path in paths:
            if path.count("/") != 2 or path.rpartition("/")[2] not in (*FACTS, "weight", "bias"):
                raise PayloadError(f"field '{name}' has '{path}', which is no part of a layer")
        for entry in sorted(entries):
            for fact, kind in FACTS.items():
                kind.check(f"{entry}/{fact}", seen, site)
            layer, kind_of = seen.scalars[f"{entry}/name"], str(seen.scalars[f"{entry}/kind"])
            tensors = {part: seen.tensors.get(f"{entry}/{part}") for part in ("weight", "bias")}
            if any(tensors[part] != own.get(f"{layer}.{part}") for part in tensors) or tensors["weight"] is None:
                raise PayloadError(f"field '{name}' has a layer '{layer}' that is not as in the client's model")
            if KINDS.get(kind_of) != len(tensors["weight"].shape):
                raise PayloadError(f"field '{name}' says that the layer '{layer}' is a '{kind_of}'")


def packed(layers: list[Layer]) -> dict[str, Value]:
    """Layers by their place, in whose order they are found again."""
    found: dict[str, Value] = {}
    for layer in layers:
        facts: dict[str, Value] = {fact: getattr(layer, fact) for fact in FACTS}
        found[f"{layer.place:06d}"] = facts | dict(zip(("weight", "bias"), layer.tensors, strict=False))
    return found


def unpacked(layers: Value) -> list[Layer]:
    """What `packed` packed, in order of place."""
    entries = Payload(layers if isinstance(layers, Mapping) else {})
    found = []
    for key in sorted(entries):
        entry = entries[key]
        held = Payload(entry if isinstance(entry, Mapping) else {})
        found.append(
            Layer(
                held.text("name"),
                held.text("kind"),
                int(held.number("place")),
                held.number("depth"),
                held.tensor("weight"),
                held.tensor("bias") if "bias" in held else None,
                held.number("change"),
            )
        )
    return found
