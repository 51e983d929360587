"""Linear CKA: how alike two models see the same samples, whatever their widths (Kornblith et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 16  # signatures that are in memory at a time, on either side of a product


def linear_cka(x: Tensor, y: Tensor) -> float:
    """||Y^T H X||_F^2 / (||X^T H X||_F ||Y^T H Y||_F) for features [n, p] and [n, q] of the same samples (7, 8).

    1 for equal features, whatever they are rotated or scaled by; 0 where one of them is the same for all samples.
    """
    x, y = (f.double() - f.double().mean(0, keepdim=True) for f in (x, y))
    between = (y.T @ x).square().sum()
    within = (x.T @ x).norm() * (y.T @ y).norm()
    return float(between / within) if within > 0 else 0.0


def mean_off_diagonal(matrix: Tensor) -> float:
    """The mean over pairs of different clients; 1 where there is only one."""
    n = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))) if n > 1 else 1.0


class Signatures:
    """Vectors whose inner products are CKA values (`training.kernels.signature`), kept on disk.

    What is in memory does not grow with the number of models, apart from the matrix itself.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._held: dict[str, int] = {}  # how many models have a layer

    def add(self, name: str, signatures: Mapping[str, Tensor]) -> None:
        """One model's vectors, by layer."""
        for layer, vector in signatures.items():
            with self._file(layer).open("ab") as file:
                file.write(np.ascontiguousarray(vector.numpy(), dtype=np.float32).tobytes())
            self._held[layer] = self._held.get(layer, 0) + 1
        self._names.append(name)

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._names)

    @property
    def common(self) -> Sequence[str]:
        """The layers that every model has, "block 2" before "block 10" and features last."""
        everywhere = [layer for layer, models in self._held.items() if models == len(self._names)]
        return tuple(sorted(everywhere, key=lambda layer: (layer == "features", len(layer), layer)))

    def matrix(self, layer: str) -> Tensor:
        """CKA of every two models at a layer, in the order in which they came."""
        n = len(self._names)
        kept: np.ndarray[Any, Any] = np.memmap(self._file(layer), dtype=np.float32, mode="r").reshape(n, -1)
        found = torch.empty(n, n)
        for i in range(0, n, BLOCK):
            rows = torch.from_numpy(np.array(kept[i : i + BLOCK]))
            for j in range(i, n, BLOCK):
                block = rows @ torch.from_numpy(np.array(kept[j : j + BLOCK])).T
                found[i : i + BLOCK, j : j + BLOCK] = block
                found[j : j + BLOCK, i : i + BLOCK] = block.T
        return found.clamp(0, 1)

    def _file(self, layer: str) -> Path:
        return self._folder / f"{layer.replace(' ', '-')}.f32"
