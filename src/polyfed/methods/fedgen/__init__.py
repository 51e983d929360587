"""FedGen: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedgen.method import FedGen

__all__ = ["FedGen"]
