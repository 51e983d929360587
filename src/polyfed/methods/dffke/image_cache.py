"""A cache of decoded images for all clients of a process.

The participants of a round hold the same decoder and the same codes. Each of them would decode the same images, and
again in every later round that replays them. The cache decodes them once. Its keys are hashes of decoder and codes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.codec import content_hash
from polyfed.methods.dffke.decoder import EmbeddingDecoder, decode

CAPACITY = 256 << 20  # bytes of images in the cache
DECODING_BATCH = 256  # fastest on CPUs: larger feature maps do not fit into their caches
MIN_BATCH = 8  # products of matrices with fewer rows have another order of summation, so other rounding errors


class ImageCache:
    """Decoded images by content. The least recently used are dropped beyond a number of bytes."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._images: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()

    def images(
        self, decoder: EmbeddingDecoder, weights: Mapping[str, Tensor], weights_hash: str, codes: Tensor
    ) -> Tensor:
        """Return the images of all codes, at least `MIN_BATCH`, as rows of pixels in channels-last order."""
        key = (weights_hash, content_hash({"codes": codes}), str(codes.device))
        if key not in self._images:
            batches = torch.tensor_split(codes, math.ceil(len(codes) / DECODING_BATCH))
            images = [decode(decoder, weights, batch).permute(0, 2, 3, 1).flatten(1) for batch in batches]
            self._images[key] = torch.cat(images)
        self._images.move_to_end(key)
        while len(self._images) > 1 and sum(tensor.nbytes for tensor in self._images.values()) > self._capacity:
            self._images.popitem(last=False)
        return self._images[key]


CACHE = ImageCache()
