"""Datasets whose official splits are merged, for papers that partition all samples and then split per client."""

from __future__ import annotations

import numpy as np

from polyfed.data import cache as dataset_cache
from polyfed.data.arrays import Decoded, Part, concatenated
from polyfed.data.dataset import Dataset, Split, open_cached
from polyfed.errors import InputError


def merge_test(data: Dataset) -> Dataset:
    """Return a dataset whose training split is both splits, training samples first. It has no test split.

    It is stored in the cache, next to the dataset, so that workers can map it into memory.
    """
    if data.test is None:
        raise InputError(f"data.merge_test is true, but {data.name} has no test split; remove data.merge_test")
    test = data.test

    def decode() -> Decoded:
        both = concatenated([_part(data.train), _part(test)])
        source = f"{data.source}, splits merged"
        return Decoded(both, None, data.class_names, source, data.vocabulary, data.features)

    folder = dataset_cache.folder_for(data.name, f"{data.folder.name}-merged", data.folder.parent)
    return open_cached(dataset_cache.ensure(folder, data.name, decode))


def _part(split: Split) -> Part:
    return Part(np.asarray(split.inputs), np.asarray(split.labels), split.columns)
