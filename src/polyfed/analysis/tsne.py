"""Maps of features: t-SNE, with a fixed seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyfed.errors import InputError

LEAST = 4  # points that a map is made of


def flat_map(vectors: np.ndarray[Any, Any], *, perplexity: float = 30.0, seed: int = 0) -> np.ndarray[Any, Any]:
    """Places [n, 2] for vectors [n, d]: near ones stay near, distances between far ones mean little.

    With few vectors the perplexity is lowered to a third of their number.
    """
    if vectors.ndim != 2 or len(vectors) < LEAST:
        raise InputError(f"a t-SNE needs at least {LEAST} vectors in a table; this has the shape {vectors.shape}")
    from sklearn.manifold import TSNE

    fitting = min(perplexity, (len(vectors) - 1) / 3)
    made = TSNE(2, perplexity=fitting, init="pca", random_state=seed)
    return np.asarray(made.fit_transform(vectors.astype(np.float64)))
