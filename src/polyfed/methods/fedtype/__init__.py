"""FedType: `method` has the algorithm, `conformal` builds prediction sets."""

from polyfed.methods.fedtype.method import FedType

__all__ = ["FedType"]
