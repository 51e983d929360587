"""The images that knowledge is exchanged on, of the current and of past rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from polyfed.core import Client
from polyfed.core.codec import content_hash
from polyfed.core.payload import view
from polyfed.methods.dffke.decoder import EmbeddingDecoder, decode, decoder_skeleton
from polyfed.methods.dffke.image_cache import CACHE, CAPACITY, MIN_BATCH
from polyfed.methods.dffke.messages import subtree


class TransferImages(Protocol):
    """Images by round, client and row."""

    def has_round(self, round_key: str) -> bool:
        """Return whether images of a round are available."""

    def count(self, round_key: str, client: str) -> int:
        """Return the number of images of a client in a round, 0 if the round is not available."""

    def prepare(self, round_key: str, client: str) -> None:
        """Prepare the images of a client in a round before training, which must not wait for a device."""

    def images(self, round_key: str, client: str, rows: Tensor) -> Tensor:
        """Return some images of a client in a round."""


class SyntheticImages:
    """Images of stored decoders and codes (line 16).

    Images come from the cache of the process as long as those of all rounds fit into it. The others are decoded when
    they are needed. Which ones these are depends on sizes only, so that results do not depend on the process.
    """

    def __init__(
        self, decoder: EmbeddingDecoder, rounds: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]
    ) -> None:
        self._decoder = decoder
        self._rounds = rounds  # decoder weights and the codes of all clients, by round
        self._weights: dict[str, dict[str, Tensor]] = {}  # decoder weights in the layout for decoding, by round
        self._hashes: dict[str, str] = {}  # of decoder weights, by round
        self._decoded: dict[tuple[str, str], Tensor] = {}  # all images of a client, by round and client
        self._cached = self._rounds_in_cache()

    @staticmethod
    def in_buffer(client: Client, width: int, channels: int) -> SyntheticImages:
        """Return the images of all rounds in a client's replay buffer."""
        entries = {key: view(subtree(entry)) for key, entry in subtree(client.state.get("buffer")).items()}
        rounds = {key: (entry.weights("decoder"), entry.weights("codes")) for key, entry in entries.items()}
        return SyntheticImages(decoder_skeleton(width, client.profile.input_shape, channels), rounds)

    def has_round(self, round_key: str) -> bool:
        return round_key in self._rounds

    def count(self, round_key: str, client: str) -> int:
        return len(self._rounds[round_key][1].get(client, ())) if round_key in self._rounds else 0

    def prepare(self, round_key: str, client: str) -> None:
        if round_key in self._cached and self.count(round_key, client) >= MIN_BATCH:
            self._all_images(round_key, client)

    def images(self, round_key: str, client: str, rows: Tensor) -> Tensor:
        if round_key in self._cached and len(rows) >= MIN_BATCH:
            pixels = self._all_images(round_key, client).index_select(0, rows)
            channels, height, width = self._decoder.shape
            return pixels.view(len(rows), height, width, channels).permute(0, 3, 1, 2)
        return decode(self._decoder, self._decoder_weights(round_key), self._rounds[round_key][1][client][rows])

    def _all_images(self, round_key: str, client: str) -> Tensor:
        """Return all images of a client in a round, as rows of pixels."""
        if (round_key, client) not in self._decoded:
            weights, codes = self._rounds[round_key]
            if round_key not in self._hashes:
                self._hashes[round_key] = content_hash(weights)
            self._decoded[round_key, client] = CACHE.images(
                self._decoder, self._decoder_weights(round_key), self._hashes[round_key], codes[client]
            )
        return self._decoded[round_key, client]

    def _decoder_weights(self, round_key: str) -> Mapping[str, Tensor]:
        if round_key not in self._weights:
            weights, _ = self._rounds[round_key]
            self._weights[round_key] = {key: _channels_last(tensor) for key, tensor in weights.items()}
        return self._weights[round_key]

    def _rounds_in_cache(self) -> set[str]:
        """Return the rounds whose images fit into the cache together: the newest, then others in order of replay."""
        image_bytes = 4 * math.prod(self._decoder.shape)
        keys = sorted(self._rounds)
        order = keys[-1:] + keys[:-1]
        sizes = [image_bytes * sum(map(len, self._rounds[key][1].values())) for key in order]
        return {key for key, total in zip(order, itertools.accumulate(sizes), strict=True) if total <= CAPACITY}


def _channels_last(tensor: Tensor) -> Tensor:
    """Return convolution weights in the memory layout that halves the decoding time on CPUs."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
