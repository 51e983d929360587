"""t-SNE embeddings of feature vectors in two dimensions, with a fixed seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyfed.errors import InputError

MIN_VECTORS = 4
SEED = 0
EXACT = 100  # up to this number of vectors the gradient is computed exactly
ITERATIONS = 500  # half of scikit-learn's default: figures hold a few hundred points, which settle earlier


def perplexity_for(count: int) -> float:
    """Return the perplexity for a number of vectors: 30, or less for fewer than 91 vectors."""
    return min(30.0, (count - 1) / 3)


def tsne_embedding(vectors: np.ndarray[Any, Any], *, seed: int = SEED) -> np.ndarray[Any, Any]:
    """Return points [n, 2] for vectors [n, d]. Raise InputError for fewer than 4 vectors.

    Neighbours stay neighbours; distances between far points have no meaning.
    """
    if vectors.ndim != 2 or len(vectors) < MIN_VECTORS:
        raise InputError(f"a t-SNE needs at least {MIN_VECTORS} vectors; the array has the shape {vectors.shape}")
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    method = "exact" if len(vectors) <= EXACT else "barnes_hut"
    perplexity = perplexity_for(len(vectors))
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed, method=method, max_iter=ITERATIONS)
    with threadpool_limits(1):  # threads wait for each other longer than they work on a few hundred points
        return np.asarray(tsne.fit_transform(vectors.astype(np.float64)))
