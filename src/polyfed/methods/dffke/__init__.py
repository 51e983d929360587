"""DFFKE: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.dffke.method import DFFKE

__all__ = ["DFFKE"]
