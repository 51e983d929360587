"""FedLatent: `method` is the algorithm, `class_gaussians` the class statistics that clients send at the end.

`decoder` has a decoder for each kind of samples, and `units` scales series and tables.
"""

from polyfed.methods.fedlatent.method import FedLatent

__all__ = ["FedLatent"]
