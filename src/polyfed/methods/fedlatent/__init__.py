"""FedLatent: `method` is the algorithm, `class_gaussians` the class statistics that clients send at the end."""

from polyfed.methods.fedlatent.method import FedLatent

__all__ = ["FedLatent"]
