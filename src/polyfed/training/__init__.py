"""Local training and evaluation in plain PyTorch, used by several methods.

`fit` is the training loop, `evaluate` counts correct predictions, `metrics` computes other metrics, `samples` holds a
client's data. The other modules are tools for methods: losses, BatchNorm statistics, upload noise. It knows nothing
of federated learning.
"""

from polyfed.training.evaluate import Score, score
from polyfed.training.fit import Fit, Loss, TrainSettings, fit
from polyfed.training.samples import Samples

__all__ = ["Samples", "TrainSettings", "Fit", "Loss", "fit", "Score", "score"]
