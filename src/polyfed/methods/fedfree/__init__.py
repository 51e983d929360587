"""FedFree: clients share the layers that changed most and receive layers with more entropy from the server.

`method` is the algorithm. The other modules hold its parts: the layers of a model and their messages, the transfer of
client layers into a global layer, the choice of replacements, and the projection into another shape.
"""

from polyfed.methods.fedfree.method import FedFree

__all__ = ["FedFree"]
