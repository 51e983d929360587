"""How much a method trains its clients' models, for estimates before a run."""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.training import TrainSettings


@dataclass(frozen=True)
class TrainingWork:
    """Samples that pass forward and backward through one client's model. A repeated sample counts each time."""

    per_round: float  # of a participant, in one round
    at_end: float = 0.0  # of every client, after the last round
    assumption: str = ""  # what the numbers assume, where they depend on the course of the run


def local_training(settings: TrainSettings, samples: int) -> TrainingWork:
    """Return the work of ordinary local training."""
    if not samples:
        return TrainingWork(0.0)
    if settings.steps is not None:
        return TrainingWork(float(settings.steps * min(settings.batch_size, samples)))
    return TrainingWork(float(settings.epochs * samples))
