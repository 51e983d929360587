"""The images that knowledge is exchanged on, of the current and of past rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from polyfed.core import Client
from polyfed.core.payload import view
from polyfed.methods.dffke.decoder import EmbeddingDecoder, decode, decoder_skeleton
from polyfed.methods.dffke.messages import subtree


class TransferImages(Protocol):
    """Images by round, client and row."""

    def has_round(self, round_key: str) -> bool:
        """Return whether images of a round are available."""

    def count(self, round_key: str, client: str) -> int:
        """Return the number of images of a client in a round, 0 if the round is not available."""

    def images(self, round_key: str, client: str, rows: Tensor) -> Tensor:
        """Return some images of a client in a round."""


class SyntheticImages:
    """Images decoded on demand: only decoders and codes are stored (line 16)."""

    def __init__(
        self, decoder: EmbeddingDecoder, rounds: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]
    ) -> None:
        self._decoder = decoder
        self._rounds = rounds  # decoder weights and the codes of all clients, by round
        self._weights: dict[str, dict[str, Tensor]] = {}  # decoder weights in the layout for decoding, by round

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

    def images(self, round_key: str, client: str, rows: Tensor) -> Tensor:
        weights, codes = self._rounds[round_key]
        if round_key not in self._weights:
            self._weights[round_key] = {key: _channels_last(tensor) for key, tensor in weights.items()}
        return decode(self._decoder, self._weights[round_key], codes[client][rows])


def _channels_last(tensor: Tensor) -> Tensor:
    """Return convolution weights in the memory layout that halves the decoding time on CPUs."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
