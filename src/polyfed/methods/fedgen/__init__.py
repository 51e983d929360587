"""FedGen: `method` has the algorithm and the generator of features."""

from polyfed.methods.fedgen.method import FedGen

__all__ = ["FedGen"]
