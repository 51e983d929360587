"""Federations for checks before a run: where the data is not on this machine, a stand-in of its size replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polyfed.config import Config
from polyfed.data.catalogue import KNOWN, known_dataset
from polyfed.data.dataset import Dataset
from polyfed.data.locations import is_available
from polyfed.data.stand_in import stand_in
from polyfed.federation.simulation import SimulatedFederation, build_federation, file_format


def federation_without_data(config: Config, cache: Path | None = None) -> SimulatedFederation:
    """Build the federation of a config. Never download: replace a known dataset that is not here by a stand-in."""
    settings = config.data
    if settings.root is not None or settings.dataset not in KNOWN:
        return build_federation(config)
    known = known_dataset(settings.dataset, how=file_format(config))
    if is_available(known, None, cache):
        return build_federation(config)
    data = stand_in(known, merged=settings.merge_test)
    if settings.partition["scheme"] == "column":
        data = _with_column(data, str(settings.partition["column"]), config.client_names)
    merged = config.model_copy(update={"data": settings.model_copy(update={"merge_test": False})})
    return build_federation(merged, data=data)


def _with_column(data: Dataset, column: str, clients: Sequence[str]) -> Dataset:
    """Return a stand-in with a column that gives every client equally many samples of every class."""
    samples = range(len(data.train.labels))
    values = tuple(clients[k // data.classes % len(clients)] for k in samples)
    return replace(data, train=replace(data.train, columns={column: values}))
