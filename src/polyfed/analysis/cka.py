"""Linear CKA: similarity of the features of two models on the same samples (Kornblith et al., ICML 2019).

The models may have features of different widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 16  # signatures in memory at a time, on either side of a matrix product


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Return ||Y^T H X||_F^2 / (||X^T H X||_F ||Y^T H Y||_F) for features [n, p] and [n, q] (equations 7 and 8).

    CKA is 1 for features that are equal up to rotation and scale, and 0 if one of them is constant.
    """
    x, y = (f.double() - f.double().mean(0, keepdim=True) for f in (x, y))
    between = (y.T @ x).square().sum()
    within = (x.T @ x).norm() * (y.T @ y).norm()
    return float(between / within) if within > 0 else 0.0


def mean_off_diagonal(matrix: Tensor) -> float:
    """Return the mean over pairs of different clients; 1 for a single client."""
    n = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))) if n > 1 else 1.0


class Signatures:
    """Vectors on disk whose inner products are CKA values (`training.cka_kernels.signature`).

    Memory use does not grow with the number of models, apart from the CKA matrix.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._models_with: dict[str, int] = {}  # number of models that have a layer

    def add(self, name: str, signatures: Mapping[str, Tensor]) -> None:
        """Append the vectors of one model, by layer."""
        for layer, vector in signatures.items():
            with self._file(layer).open("ab") as file:
                file.write(np.ascontiguousarray(vector.numpy(), dtype=np.float32).tobytes())
            self._models_with[layer] = self._models_with.get(layer, 0) + 1
        self._names.append(name)

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._names)

    @property
    def common(self) -> Sequence[str]:
        """The layers that all models have, "block 2" before "block 10" and features last."""
        layers = [layer for layer, models in self._models_with.items() if models == len(self._names)]
        return tuple(sorted(layers, key=lambda layer: (layer == "features", len(layer), layer)))

    def matrix(self, layer: str) -> Tensor:
        """Return the CKA between every two models at a layer, in the order in which they were added."""
        n = len(self._names)
        vectors: np.ndarray[Any, Any] = np.memmap(self._file(layer), dtype=np.float32, mode="r").reshape(n, -1)
        matrix = torch.empty(n, n)
        for i in range(0, n, BLOCK):
            rows = torch.from_numpy(np.array(vectors[i : i + BLOCK]))
            for j in range(i, n, BLOCK):
                block = rows @ torch.from_numpy(np.array(vectors[j : j + BLOCK])).T
                matrix[i : i + BLOCK, j : j + BLOCK] = block
                matrix[j : j + BLOCK, i : i + BLOCK] = block.T
        return matrix.clamp(0, 1)

    def _file(self, layer: str) -> Path:
        return self._folder / f"{layer.replace(' ', '-')}.f32"
