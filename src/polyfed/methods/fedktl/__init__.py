"""FedKTL: knowledge of a pretrained image generator at the server, transferred to clients by images and latents.

`method` is the algorithm. The other modules hold its parts: classification against a simplex, and the server's
training of a network that maps the clients' class means to latents of the generator.
"""

from polyfed.methods.fedktl.method import FedKTL

__all__ = ["FedKTL"]
