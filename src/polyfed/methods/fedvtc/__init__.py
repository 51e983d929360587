"""FedVTC: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.fedvtc.method import FedVTC

__all__ = ["FedVTC"]
