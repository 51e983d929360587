"""Text as tokens: words hashed into a vocabulary of fixed size, or tokens of a Hugging Face tokenizer from a file.

Neither needs a download. Token 0 is padding.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.data.catalogue import Format, read_tokenizer
from polyfed.errors import InputError, require

PADDING = 0
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def tokens(texts: Iterable[str], how: Format) -> Ints:
    """Return (n, length) tokens of texts, cut or padded with 0."""
    if how.tokenizer is None:
        return hashed_tokens(texts, how.vocabulary, how.text_length)
    tokenizer = _load(read_tokenizer(how.tokenizer), how.tokenizer)
    encoded = tokenizer.encode_batch([str(text) for text in texts])
    # shifted by one, because 0 is padding here, while a tokenizer may use it for a word
    return _padded([[1 + token for token in entry.ids[: how.text_length]] for entry in encoded], how.text_length)


def vocabulary_size(how: Format) -> int:
    """Return the number of tokens, including 0 for padding."""
    if how.tokenizer is None:
        return how.vocabulary
    return 1 + int(_load(read_tokenizer(how.tokenizer), how.tokenizer).get_vocab_size())


@lru_cache(maxsize=4)
def _load(content: str, path: str) -> Any:
    """Return the tokenizer of a file, without its own padding and truncation."""
    require("tokenizers", extra="tokenizers", sentence="data.tokenizer needs")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(f"data.tokenizer: {path} is not a tokenizer.json file ({str(error)[:100]})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@cache
def _token(word: str, vocabulary: int) -> int:
    # CRC-32 gives the same token in every process and on every machine, unlike Python's own hash of strings.
    return 1 + zlib.crc32(word.encode("utf-8", "replace")) % (vocabulary - 1)


def hashed_tokens(texts: Iterable[str], vocabulary: int, length: int) -> Ints:
    """Return (n, length) tokens: lower-case words and punctuation marks, cut or padded with 0.

    >>> hashed_tokens(["Hello, hello"], 100, 4).tolist()[0][3]
    0
    """
    return _padded(
        [[_token(word, vocabulary) for word in _WORD.findall(str(text).lower())[:length]] for text in texts], length
    )


def _padded(rows: Sequence[Sequence[int]], length: int) -> Ints:
    array = np.full((len(rows), length), PADDING, dtype=np.int64)
    for row, words in zip(array, rows, strict=True):
        row[: len(words)] = words
    return array
