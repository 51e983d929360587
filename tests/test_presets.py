"""Presets that need a fitting model are tried on the shapes of their data, which need not be here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyfed import api
from polyfed.config import parse
from polyfed.config.loading import read_source
from polyfed.data.catalogue import KNOWN
from polyfed.federation.model_assignment import assign_models
from polyfed.models.decoders import transposed_decoder
from polyfed.models.slicing import skeleton

DECODING = {
    "fedlatent-digits": 8,
    "fedvtc-digits": 8,
    "fedvtc-paper": 8,
    "fedvtc-fashion-mnist": 28,
    "fedvtc-cifar10": 32,
    "fedvtc-tiny-imagenet": 64,
}


@pytest.mark.parametrize(("preset", "side"), DECODING.items())
def test_decoders_and_models_fit_the_images(preset: str, side: int) -> None:
    config = parse(read_source(preset))
    shape, classes = KNOWN[config.data.dataset].shape, KNOWN[config.data.dataset].classes
    assert shape is not None
    assert shape[1:] == (side, side)
    features = math.prod(config.models.feature_map or ())
    decoder = transposed_decoder(features, shape, config.method.get("decoder_norm", "group"))
    assert decoder(torch.zeros(2, features)).shape == (2, *shape)
    for spec in set(assign_models(config)):
        assert skeleton(spec, shape=shape, classes=classes).feature_dim == features


@pytest.mark.parametrize("preset", ["breast-cancer", "wine", "uci-har", "ag-news", "shakespeare"])
def test_groups_of_four_architectures_fit_samples_that_are_not_pictures(preset: str) -> None:
    config = parse(read_source(preset))
    known = KNOWN[config.data.dataset]
    shape = (config.data.text_length,) if preset == "ag-news" else known.shape
    assert shape is not None and known.kind != "picture"
    specs = set(assign_models(config))
    assert len(specs) == 4
    if known.kind == "tokens":
        specs = {replace(spec, vocabulary=100) for spec in specs}
    models = [skeleton(spec, shape=shape, classes=known.classes) for spec in specs]
    assert len({model.feature_dim for model in models}) == 1  # so that methods can exchange features


def test_a_preset_for_tables_runs(tmp_path: Path) -> None:
    result = api.run("wine", rounds=1, engine={"name": "serial"}, out=tmp_path)
    assert result["failures"] == [] and len(result["accuracy"]["global"]["by_client"]) == 4
