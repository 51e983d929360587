"""Joining the parts of large messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfed.core import joined_bytes
from polyfed.core.joined_bytes import join
from polyfed.machine import LARGE


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 4097])
def test_large_and_small_parts_are_joined(size: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    parts: list[bytes | memoryview] = [b"head", numbers.data, b"", numbers[: size // 3].data, b"end"]
    joined = join(parts)
    assert isinstance(joined, bytes)
    assert joined == b"".join(parts)


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_every_size_gives_the_same_bytes(parts: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_bytes, "LARGE", 1)
        assert join(parts) == b"".join(parts)


def test_a_view_of_numbers_counts_its_bytes() -> None:
    numbers = np.arange(LARGE, dtype=np.float64)
    assert join([numbers.data, b"x"]) == numbers.tobytes() + b"x"
