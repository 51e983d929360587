"""FedKD: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedkd.method import FedKD

__all__ = ["FedKD"]
