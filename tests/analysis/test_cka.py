"""Linear CKA: range, invariances, and signatures on disk that give the same values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.analysis.cka import BLOCK, Signatures, linear_cka, mean_off_diagonal
from polyfed.analysis.tsne import tsne_embedding
from polyfed.core.cka_signature import centred_gram, signature
from polyfed.errors import InputError

few = settings(max_examples=25, deadline=None)
seeds, widths, samples = st.integers(0, 999), st.integers(1, 9), st.integers(3, 12)


def features(seed: int, n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seeds, samples, widths)
@few
def test_cka_of_equal_features_is_1(seed: int, n: int, d: int) -> None:
    x = features(seed, n, d)
    assert linear_cka(x, x) == pytest.approx(1)


@given(seeds, seeds, samples, widths, widths)
@few
def test_range_symmetry_and_kernel_form(a: int, b: int, n: int, p: int, q: int) -> None:
    x, y = features(a, n, p), features(b, n, q)
    value = linear_cka(x, y)
    assert -1e-12 <= value <= 1 + 1e-9
    assert linear_cka(y, x) == pytest.approx(value)
    k, m = centred_gram(x), centred_gram(y)
    assert float((k * m).sum() / (k.norm() * m.norm())) == pytest.approx(value)  # Eq. (7)


@given(seeds, seeds, samples, widths, st.sampled_from([1e-3, -2.0, 50.0]))
@few
def test_invariance_to_rotation_scale_and_shift(a: int, b: int, n: int, d: int, scale: float) -> None:
    x, y = features(a, n, d), features(b, n, 4)
    rotation = torch.linalg.qr(features(a + 1, d, d)).Q
    moved = scale * x @ rotation + features(b + 1, 1, d)
    assert linear_cka(moved, y) == pytest.approx(linear_cka(x, y), abs=1e-9)


def test_by_hand() -> None:
    # X = (1, -1, 0, 0), Y = (0, 0, 1, -1): centred, orthogonal. With Z = X + Y: (X.Z)^2 / (X.X Z.Z) = 4 / (2 * 4).
    x, y = torch.tensor([[1.0], [-1], [0], [0]]), torch.tensor([[0.0], [0], [1], [-1]])
    assert linear_cka(x, y) == 0
    assert linear_cka(x, x + y) == pytest.approx(0.5)
    assert linear_cka(x, torch.ones(4, 3)) == 0  # constant features


@given(seeds, seeds, samples, widths, widths)
@few
def test_inner_product_of_signatures_is_cka(a: int, b: int, n: int, p: int, q: int) -> None:
    x, y = features(a, n, p), features(b, n, q)
    one, other = signature(x), signature(y)
    assert one.shape == (n * (n + 1) // 2,)
    assert float(one @ other) == pytest.approx(linear_cka(x, y), abs=1e-5)


def test_matrix_computed_in_blocks(tmp_path: Path) -> None:
    count = BLOCK + 3  # more than fits in one block
    inputs = [features(k, 8, 1 + k % 4) for k in range(count)]
    signatures = Signatures(tmp_path)
    for k, x in enumerate(inputs):
        vectors = {"block 10": signature(x), "features": signature(x), "block 2": signature(2 * x)}
        signatures.add(str(k), vectors if k else {**vectors, "block 11": signature(x)})
    assert signatures.common == ("block 2", "block 10", "features")  # without layers that only the first has
    expected = torch.tensor([[linear_cka(x, y) for y in inputs] for x in inputs], dtype=torch.float32)
    for layer in signatures.common:
        assert torch.allclose(signatures.matrix(layer), expected, atol=1e-5)
    assert signatures.names == tuple(str(k) for k in range(count))


def test_mean_off_diagonal() -> None:
    assert mean_off_diagonal(torch.tensor([[1.0, 0.2], [0.4, 1.0]])) == pytest.approx(0.3)
    assert mean_off_diagonal(torch.ones(1, 1)) == 1


def test_tsne_separates_groups_and_is_deterministic() -> None:
    noise = features(0, 20, 5).numpy()
    vectors = noise * 0.1 + np.repeat(np.eye(5)[:2] * 20, 10, axis=0)
    points = tsne_embedding(vectors)
    assert points.shape == (20, 2)
    assert np.array_equal(points, tsne_embedding(vectors))
    centres = points[:10].mean(0), points[10:].mean(0)
    nearer = [int(np.linalg.norm(p - centres[0]) > np.linalg.norm(p - centres[1])) for p in points]
    assert nearer == [0] * 10 + [1] * 10
    with pytest.raises(InputError, match="at least 4 vectors"):
        tsne_embedding(vectors[:3])
