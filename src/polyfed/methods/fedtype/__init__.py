"""FedType: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedtype.method import FedType

__all__ = ["FedType"]
