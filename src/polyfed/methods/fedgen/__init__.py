"""FedGen: `method` has the algorithm."""

from polyfed.methods.fedgen.method import FedGen

__all__ = ["FedGen"]
