"""CPU-sized networks for text: a row of tokens per sample, 0 for padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyfed.models.blocks import Trunk, scaled
from polyfed.models.spec import ModelSpec
from polyfed.models.vit import Block

FEATURES = 64  # the common feature width of the group
EMBEDDING = 16


class _TextTrunk(Trunk):
    """Base class of text networks, with a token embedding."""

    spatial = False

    def __init__(self, spec: ModelSpec, vocabulary: int) -> None:
        super().__init__()
        self.width = scaled(EMBEDDING, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.embedding = nn.Embedding(vocabulary, self.width, padding_idx=0)


def _mean_of_words(vectors: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean over the tokens that are not padding; zeros for an empty text."""
    present = (tokens != 0).unsqueeze(-1).to(vectors.dtype)
    return (vectors * present).sum(1) / present.sum(1).clamp_min(1.0)


class TextBag(_TextTrunk):
    """The mean embedding of the words and one hidden layer (fastText, Joulin et al., 2017)."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__(spec, vocabulary)
        self.last = nn.Sequential(nn.Linear(self.width, self.channels), nn.ReLU())

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.last(_mean_of_words(self.embedding(tokens), tokens))
        return out


class TextCNN(_TextTrunk):
    """Convolutions of three kernel sizes with max pooling over the text (Kim, EMNLP 2014)."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__(spec, vocabulary)
        filters = scaled(24, spec.width)
        self.convolutions = nn.ModuleList(nn.Conv1d(self.width, filters, k, padding=k // 2) for k in (3, 5, 7))
        self.last = nn.Sequential(nn.Linear(3 * filters, self.channels), nn.ReLU())

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens).transpose(1, 2)
        pooled = [torch.relu(convolution(vectors)).amax(2) for convolution in self.convolutions]
        out: Tensor = self.last(torch.cat(pooled, 1))
        return out


class TextGRU(_TextTrunk):
    """A GRU over the words. The feature is the mean hidden state over the words."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__(spec, vocabulary)
        self.gru = nn.GRU(self.width, self.channels, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens))
        return _mean_of_words(states, tokens)


class TextTransformer(_TextTrunk):
    """One transformer layer with learned positions, and the mean over words."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__(spec, vocabulary)
        self.position = nn.Parameter(torch.zeros(shape[0], self.width))
        self.layer = Block(self.width, 2, 4 * self.width)
        self.last = nn.Sequential(nn.LayerNorm(self.width), nn.Linear(self.width, self.channels), nn.ReLU())

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.layer(self.embedding(tokens) + self.position)
        out: Tensor = self.last(_mean_of_words(vectors, tokens))
        return out


TEXT = {
    "tiny-text-bag": TextBag,
    "tiny-text-cnn": TextCNN,
    "tiny-text-gru": TextGRU,
    "tiny-text-transformer": TextTransformer,
}
