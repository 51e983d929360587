"""FedVTC: class prototypes, a small decoder per client, and fine-tuning on synthetic images.

`method` is the algorithm. The other modules hold its parts: the decoder, the loss that trains it, the synthetic
samples that it generates, fine-tuning on these samples, and activation checkpointing.
"""

from polyfed.methods.fedvtc.method import FedVTC

__all__ = ["FedVTC"]
