"""The one local training loop, evaluation, and the samples they walk over. Plain PyTorch."""

from polyfed.training.evaluate import Score, score
from polyfed.training.fit import Fit, Loss, TrainSettings, fit
from polyfed.training.samples import Samples

__all__ = ["Samples", "TrainSettings", "Fit", "Loss", "fit", "Score", "score"]
