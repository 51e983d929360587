"""CCVR: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.ccvr.method import CCVR

__all__ = ["CCVR"]
