"""FedKTL: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedktl.method import FedKTL

__all__ = ["FedKTL"]
