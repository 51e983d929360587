"""Text as tokens, without downloads: words are hashed into a vocabulary of fixed size."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import cache

import numpy as np

from polyfed.data.arrays import Ints

PADDING = 0
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


@cache
def _token(word: str, vocabulary: int) -> int:
    # CRC-32 gives the same token in every process and on every machine, unlike Python's own hash of strings.
    return 1 + zlib.crc32(word.encode("utf-8", "replace")) % (vocabulary - 1)


def hashed_tokens(texts: Iterable[str], vocabulary: int, length: int) -> Ints:
    """Return (n, length) tokens: lower-case words and punctuation marks, cut or padded with 0.

    >>> hashed_tokens(["Hello, hello"], 100, 4).tolist()[0][3]
    0
    """
    rows = [[_token(word, vocabulary) for word in _WORD.findall(str(text).lower())[:length]] for text in texts]
    tokens = np.full((len(rows), length), PADDING, dtype=np.int64)
    for row, words in zip(tokens, rows, strict=True):
        row[: len(words)] = words
    return tokens
