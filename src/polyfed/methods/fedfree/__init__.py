"""FedFree: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedfree.method import FedFree

__all__ = ["FedFree"]
