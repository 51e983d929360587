"""Low-rank compression: rank, accuracy, message size, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.core.codec import decode, encode
from polyfed.errors import PayloadError
from polyfed.methods.fedkd.low_rank import apply_update, compress, rank_for


def numbers(value: Any) -> int:
    """Return the number of entries in a message."""
    return sum(part.numel() for part in value.values()) if isinstance(value, dict) else int(value.numel())


def restored(tensor: Tensor, energy: float) -> tuple[Tensor, int]:
    """Compress, encode, decode and reconstruct a tensor; also return the number of entries sent."""
    sent = compress({"w": tensor}, energy)
    arrived = decode(encode({"update": sent}).data)["update"]
    return apply_update({"w": torch.zeros_like(tensor)}, arrived)["w"], numbers(sent["w"])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).standard_normal(shape)).float()


@pytest.mark.parametrize(
    ("energy", "rank"), [(0.1, 1), (9 / 14, 1), (0.65, 2), (13 / 14, 2), (0.93, 3), (0.98, 3), (1.0, 3)]
)
def test_the_rank_by_hand(energy: float, rank: int) -> None:
    # squares 9, 4, 1 add up to 9, 13, 14 of 14: 0.643, 0.929, 1
    assert rank_for(torch.tensor([3.0, 2.0, 1.0]), energy) == rank


def test_only_a_zero_matrix_has_rank_0() -> None:
    assert rank_for(torch.zeros(3), 0.9) == 0
    assert rank_for(torch.tensor([1e-30, 0.0]), 0.01) == 1
    back, sent = restored(torch.zeros(4, 5), 0.95)
    assert sent == 0 and torch.equal(back, torch.zeros(4, 5))


CASES = {
    "random": normal(20, 30),
    "rank 1": normal(20, 1) @ normal(1, 30, seed=1),
    "zero": torch.zeros(20, 30),
    "1x1 kernel": normal(16, 8, 1, 1),
    "3x3 kernel": normal(16, 8, 3, 3),
    "depthwise kernel": normal(16, 1, 3, 3),
    "head of ten classes": normal(10, 512) / 22,
    "one row": normal(1, 7),
    "one number": normal(1, 1),
    "three rows": normal(3, 4),
    "three numbers": normal(3),
    "embedding": normal(1, 5, 8),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("energy", [0.5, 0.95, 0.98, 1.0])
def test_energy_is_preserved_and_no_message_grows(name: str, energy: float) -> None:
    tensor = CASES[name]
    back, sent = restored(tensor, energy)
    assert back.shape == tensor.shape and back.dtype == tensor.dtype
    assert sent <= tensor.numel()
    assert float(back.square().sum()) >= energy * float(tensor.square().sum()) * (1 - 1e-5)
    assert bool(back.any()) == bool(tensor.any())
    if energy == 1.0:
        assert torch.allclose(back, tensor, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 12),
    n=st.integers(1, 12),
    rank=st.integers(1, 12),
    energy=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
)
def test_the_error_is_at_most_the_remaining_energy(m: int, n: int, rank: int, energy: float, seed: int) -> None:
    # The truncated decomposition is orthogonal to what it leaves out: |W - W_r|^2 = |W|^2 - |W_r|^2.
    tensor = normal(m, rank, seed=seed) @ normal(rank, n, seed=seed + 1)
    back, sent = restored(tensor, energy)
    whole = float(tensor.square().sum())
    assert float((tensor - back).square().sum()) <= (1 - energy) * whole + 1e-5 * whole
    assert sent <= m * n


def test_message_size_by_hand() -> None:
    # rank 1 of 20 x 30: 20 + 30 + 1 instead of 600. A kernel [8, 2, 3, 3] is the matrix 8 x 18: 8 + 18 + 1.
    assert restored(CASES["rank 1"], 0.95)[1] == 51
    assert restored((normal(8, 1) @ normal(1, 18, seed=1)).reshape(8, 2, 3, 3), 0.95)[1] == 27
    assert restored(normal(2, 2), 1.0)[1] == 4  # rank 2 would be 10


def test_a_kernel_is_reconstructed_in_its_layout() -> None:
    kernel = (normal(8, 1) @ normal(1, 18, seed=1)).reshape(8, 2, 3, 3)
    assert torch.allclose(restored(kernel, 1.0)[0], kernel, rtol=1e-5, atol=1e-6)
    last = kernel.to(memory_format=torch.channels_last)
    assert torch.allclose(restored(last, 1.0)[0], kernel, rtol=1e-5, atol=1e-6)


def test_counters_are_not_compressed() -> None:
    assert torch.equal(restored(torch.tensor(7), 0.5)[0], torch.tensor(7))


FACTORS = {"left": torch.ones(4, 1), "singular": torch.ones(1), "right": torch.ones(1, 5)}


@pytest.mark.parametrize(
    ("update", "expected_error"),
    [
        ({"v": torch.zeros(4, 5)}, "same names"),
        (torch.zeros(4, 5), "same names"),
        ({"w": torch.zeros(5)}, r"'w' does not fit its shape \(4, 5\)"),
        ({"w": {**FACTORS, "left": torch.ones(3, 1)}}, "'w' does not fit"),
        ({"w": {**FACTORS, "right": torch.ones(2, 5)}}, "'w' does not fit"),
        ({"w": {"left": torch.ones(4, 1)}}, "'w' does not fit"),
        ({"w": 3.0}, "'w' does not fit"),
    ],
)
def test_updates_of_other_shapes_raise(update: Any, expected_error: str) -> None:
    with pytest.raises(PayloadError, match=expected_error):
        apply_update({"w": torch.zeros(4, 5)}, update)
    assert torch.equal(apply_update({"w": torch.zeros(4, 5)}, {"w": FACTORS})["w"], torch.ones(4, 5))
