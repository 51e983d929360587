"""FedKD: `method` has the algorithm, `low_rank` compresses updates."""

from polyfed.methods.fedkd.method import FedKD

__all__ = ["FedKD"]
