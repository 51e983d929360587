"""Metrics of predictions beside accuracy, computed with scikit-learn from the scores of all test samples.

scikit-learn takes a second to import, so it is imported when the first metric is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.training.samples import EVALUATION_BATCH, Samples

CONFUSION = "confusion"
CALIBRATION_BINS = 15  # of equal width, over the probability of the predicted class

Labels = NDArray[np.int64]
Probabilities = NDArray[np.float64]


@torch.no_grad()
def class_scores(predict: Callable[[Tensor], Tensor], samples: Samples) -> Tensor:
    """Return the scores of all samples, one row per sample and one column per class."""
    return torch.cat([predict(x) for x, _ in samples.batches(EVALUATION_BATCH)]).cpu()


def compute_metric(name: str, scores: Tensor, labels: Tensor) -> float | None:
    """Return a metric by name. Return None if it is not defined for these samples.

    Metrics of `PROBABILITY_METRICS` take scores as logits; the others need no more than the predicted classes.
    """
    value: float | None
    if name in PREDICTION_METRICS:
        value = PREDICTION_METRICS[name](labels.numpy(), scores.argmax(1).numpy())
    else:
        probabilities = scores.double().softmax(1).numpy()
        if not np.isfinite(probabilities).all():
            return None  # the model has diverged
        value = PROBABILITY_METRICS[name](labels.numpy(), probabilities)
    return value if value is not None and np.isfinite(value) else None


def confusion_matrix(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the number of samples by true class (rows) and predicted class (columns)."""
    from sklearn import metrics

    classes = range(scores.shape[1])
    return torch.from_numpy(metrics.confusion_matrix(labels.numpy(), scores.argmax(1).numpy(), labels=classes))


def balanced_accuracy(labels: Labels, predicted: Labels) -> float:
    """Return the mean recall over the classes that occur in `labels`."""
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # predicted classes that do not occur in the labels
        return float(metrics.balanced_accuracy_score(labels, predicted))


def macro_f1(labels: Labels, predicted: Labels) -> float:
    """Return the mean F1 score over the classes that occur in the labels or the predictions."""
    from sklearn import metrics

    return float(metrics.f1_score(labels, predicted, average="macro", zero_division=0))


def auroc(labels: Labels, probabilities: Probabilities) -> float | None:
    """Return the mean AUROC of each class against the rest, over the classes that occur in `labels`."""
    from sklearn import metrics

    present = np.unique(labels)
    if len(present) < 2:
        return None
    return float(np.mean([metrics.roc_auc_score(labels == c, probabilities[:, c]) for c in present]))


def log_loss(labels: Labels, probabilities: Probabilities) -> float:
    """Return the mean negative log-likelihood of the true class, in nats."""
    from sklearn import metrics

    return float(metrics.log_loss(labels, probabilities, labels=range(probabilities.shape[1])))


def calibration_error(labels: Labels, probabilities: Probabilities) -> float:
    """Return the expected calibration error of the predicted class: |accuracy - confidence|, averaged over bins."""
    from sklearn import calibration

    confidence = probabilities.max(1).clip(0.0, 1.0)
    correct = probabilities.argmax(1) == labels
    # `calibration_curve` leaves out empty bins, and so does this count
    edges = np.linspace(0.0, 1.0, CALIBRATION_BINS + 1)
    counts = np.bincount(np.searchsorted(edges[1:-1], confidence))
    accuracies, confidences = calibration.calibration_curve(
        correct, confidence, n_bins=CALIBRATION_BINS, strategy="uniform", pos_label=True
    )
    return float(np.average(np.abs(accuracies - confidences), weights=counts[counts > 0]))


PREDICTION_METRICS: Mapping[str, Callable[[Labels, Labels], float]] = {
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
}
PROBABILITY_METRICS: Mapping[str, Callable[[Labels, Probabilities], float | None]] = {
    "auroc": auroc,
    "log_loss": log_loss,
    "calibration_error": calibration_error,
}
SCALAR_METRICS = (*PREDICTION_METRICS, *PROBABILITY_METRICS)
