"""How much FedVTC trains a client's model, for estimates before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.core.client_profile import Profile
from polyfed.core.training_work import TrainingWork, local_training
from polyfed.training import TrainSettings

if TYPE_CHECKING:
    from polyfed.methods.fedvtc.method import FedVTC


def training_work(
    method: FedVTC, client: Profile, roster: Sequence[Profile], per_round: int, settings: TrainSettings
) -> TrainingWork:
    """Count passes through the client's model, where a forward pass is a third of training. The decoder is small.

    Training the model takes a pass over images and one over decoded images; training the decoder takes a forward
    pass over images, and a forward and backward pass through frozen weights.
    """
    passes = 3 if method.matching else 4 / 3
    if method.recompute:
        passes += 1 if method.matching else 1 / 3
    synthetic = method.samples_per_class * client.classes * method.finetune_epochs
    return TrainingWork(
        local_training(settings, client.samples).per_round * passes, synthetic * (1 + method.real_share)
    )
