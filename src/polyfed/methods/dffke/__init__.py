"""DFFKE. `method` is the algorithm in the order of the paper; the other modules hold its parts.

Server: docking, decoder_training, replay_index, replay_rounds, teachers. Client: local_training, synthetic_images,
image_cache, exchange. Both: pixel_statistics. `public_images` is the variant on a public dataset, `records` writes
what figures are drawn from.
"""

from polyfed.methods.dffke.method import DFFKE

__all__ = ["DFFKE"]
