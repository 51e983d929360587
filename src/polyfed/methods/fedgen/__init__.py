"""FedGen: `method` has the algorithm, `optimizer_state` keeps the Adam state of the generator between rounds."""

from polyfed.methods.fedgen.method import FedGen

__all__ = ["FedGen"]
