"""FedL2G: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedl2g.method import FedL2G

__all__ = ["FedL2G"]
