"""The choice of the global layer that replaces a layer of a client (Algorithm 1, line 16), and its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from polyfed.core import Server
from polyfed.core.payload import Value
from polyfed.methods.fedfree.layers import Layer


@dataclass(frozen=True)
class UploadedLayer:
    """A layer that a client uploaded in this round."""

    client: str
    layer: Layer  # with its weights, or shapes only if the gain compares entropies that are already known
    mapped_to: int  # j = map(i, l), the index of the global layer that it is mapped to
    entropy: float = 0.0  # H(theta_il) over its own range


@dataclass(frozen=True)
class LayerReplacement:
    """A global layer that may replace an uploaded layer of a client."""

    upload: UploadedLayer
    source: int  # index of the global layer
    gain: float  # KGE = H(g_j) - H(theta_il) (Eq. 6)


Candidates = Mapping[str, Sequence[LayerReplacement]]  # by client
Scope = Literal["partners", "mapped_only", "updated_only", "all_same_type"]


def candidates(
    uploads: Sequence[UploadedLayer],
    net: Sequence[Layer],
    in_scope: Callable[[UploadedLayer, int], bool],
    gain: Callable[[UploadedLayer, Layer], float],
) -> Candidates:
    """Pair each uploaded layer with the global layers of its kind that are in scope for it."""
    pairs: dict[str, list[LayerReplacement]] = {upload.client: [] for upload in uploads}
    for upload in uploads:
        for layer in net:
            if layer.kind == upload.layer.kind and in_scope(upload, layer.index):
                pairs[upload.client].append(LayerReplacement(upload, layer.index, gain(upload, layer)))
    return pairs


def with_sources(sources: Value, uploads: Sequence[UploadedLayer]) -> dict[str, Value]:
    """Return by global layer which client it was learned from, after these uploads; "" stands for several clients."""
    known = dict(sources) if isinstance(sources, Mapping) else {}
    for upload in uploads:
        layer = str(upload.mapped_to)
        known[layer] = upload.client if known.get(layer, upload.client) == upload.client else ""
    return known


def learned_from_others(sources: Value, layer: int, client: str) -> bool:
    """Return whether a global layer was learned from uploads of other clients."""
    return isinstance(sources, Mapping) and sources.get(str(layer), client) != client


def in_scope(scope: Scope, updates: Tensor, sources: Value) -> Callable[[UploadedLayer, int], bool]:
    """Return the function that says whether a global layer may replace an uploaded layer.

    `updates` has the number of updates of each global layer, `sources` the client that it was learned from.
    """

    def allowed(upload: UploadedLayer, j: int) -> bool:
        if scope == "partners":  # the layer of the same depth, if it learned from another client
            return j == upload.mapped_to and learned_from_others(sources, j, upload.client)
        return {"all_same_type": True, "mapped_only": j == upload.mapped_to, "updated_only": bool(updates[j])}[scope]

    return allowed


def largest_gains(gains: Candidates) -> list[LayerReplacement]:
    """Return, for each client, the replacement with the largest gain, if that is positive."""
    best = (max(pairs, key=_rank) for pairs in gains.values() if pairs)
    return [replacement for replacement in best if replacement.gain > 0]


def _rank(replacement: LayerReplacement) -> tuple[float, int, int]:
    """Order by gain. Of equal gains the earlier global layer, then the earlier client layer, comes first."""
    return replacement.gain, -replacement.source, -replacement.upload.layer.index


def record_exchange(
    server: Server, net: Sequence[Layer], uploads: Sequence[UploadedLayer], replacements: Sequence[LayerReplacement]
) -> None:
    """Record which layers were uploaded and which were sent back, for `polyfed figure`."""
    server.record(
        "layers_up",
        clients=[upload.client for upload in uploads],
        layers=[upload.layer.name for upload in uploads],
        changes=[upload.layer.change for upload in uploads],
    )
    server.record(
        "layers_down",
        clients=[replacement.upload.client for replacement in replacements],
        layers=[replacement.upload.layer.name for replacement in replacements],
        sources=[net[replacement.source].name for replacement in replacements],
        gains=[replacement.gain for replacement in replacements],
    )
