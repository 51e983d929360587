"""How many samples local training passes through a model."""

from __future__ import annotations

import pytest

from polyfed.core.training_work import local_training
from polyfed.training import TrainSettings


@pytest.mark.parametrize(
    ("settings", "samples", "expected"),
    [
        (TrainSettings(epochs=3, batch_size=8), 20, 60.0),
        (TrainSettings(steps=5, batch_size=8), 20, 40.0),
        (TrainSettings(steps=5, batch_size=8), 6, 30.0),  # a batch has at most all samples
        (TrainSettings(steps=5), 0, 0.0),
    ],
)
def test_work_of_local_training(settings: TrainSettings, samples: int, expected: float) -> None:
    assert local_training(settings, samples).per_round == expected
