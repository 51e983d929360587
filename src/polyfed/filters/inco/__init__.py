"""InCo Aggregation: `filter` is the algorithm, `rules` are its mixing rules, `pairing` selects the layers to mix."""

from polyfed.filters.inco.filter import InCo

__all__ = ["InCo"]
