"""The server's network: its architecture, and the mapping of client layers to its layers."""

from __future__ import annotations

from collections.abc import Sequence

from polyfed.core import Server
from polyfed.methods.fedfree.layers import Layer


def nearest_in_depth(layer: Layer, net: Sequence[Layer]) -> int:
    """Return the index of the first global layer of the same kind with the nearest relative depth."""
    same_kind = [other.index for other in net if other.kind == layer.kind]
    return min(same_kind, key=lambda j: abs(net[j].depth - layer.depth))


def fewest_layers(server: Server) -> str:
    """Return the client architecture with the fewest layers, with convolutions if any client has them."""
    weights = {p.spec: [shape for name, shape, _ in p.model if name.endswith("weight")] for p in server.roster}
    convolutional = {spec: shapes for spec, shapes in weights.items() if any(len(shape) == 4 for shape in shapes)}
    return min(convolutional or weights, key=lambda spec: len(weights[spec]))
