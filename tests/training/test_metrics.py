"""Metrics of predictions: examples computed by hand, and scikit-learn on the same predictions."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from polyfed.config.sections import Metric
from polyfed.training.metrics import CONFUSION, SCALAR_METRICS, compute_metric, confusion_matrix

LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
PREDICTED = torch.tensor([0, 0, 1, 1, 0, 2])


def one_hot_scores(predicted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(predicted, 3).float()


def test_every_metric_of_the_config_exists() -> None:
    assert set(get_args(Metric)) == {"accuracy", *SCALAR_METRICS, CONFUSION}


def test_metrics_of_predicted_classes_by_hand() -> None:
    scores = one_hot_scores(PREDICTED)
    assert compute_metric("balanced_accuracy", scores, LABELS) == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    # class 0: precision 2/3, recall 2/3; class 1: 1/2 and 1/2; class 2: 1 and 1
    assert compute_metric("macro_f1", scores, LABELS) == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert confusion_matrix(scores, LABELS).tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_metrics_of_probabilities_by_hand() -> None:
    probabilities = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.55, 0.45]])
    labels = torch.tensor([0, 0, 1, 1])
    scores = probabilities.double().log()
    # class 1 scores: 0.2 and 0.6 for class 0, 0.7 and 0.45 for class 1: three of four pairs are in order
    assert compute_metric("auroc", scores, labels) == pytest.approx(3 / 4)
    expected = -(math.log(0.8) + math.log(0.4) + math.log(0.7) + math.log(0.45)) / 4
    assert compute_metric("log_loss", scores, labels) == pytest.approx(expected)
    # every confidence has its own bin: 0.8 and 0.7 are correct, 0.6 and 0.55 are not, in bins of 1/15
    assert compute_metric("calibration_error", scores, labels) == pytest.approx((0.2 + 0.3 + 0.6 + 0.55) / 4)


def test_calibration_error_averages_within_a_bin() -> None:
    """Both confidences are between 12/15 and 13/15; one of the two predictions is correct."""
    scores = torch.tensor([[0.81, 0.19], [0.85, 0.15]]).double().log()
    error = compute_metric("calibration_error", scores, torch.tensor([0, 1]))
    assert error == pytest.approx(abs(0.5 - 0.83))


def test_scikit_learn_gives_the_same_numbers() -> None:
    from sklearn import metrics as sk  # here: it takes half a second to import

    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(300, 5, generator=generator)
    labels = torch.randint(0, 5, (300,), generator=generator)
    probabilities = scores.double().softmax(1).numpy()
    y, predicted = labels.numpy(), scores.argmax(1).numpy()
    assert compute_metric("auroc", scores, labels) == pytest.approx(
        sk.roc_auc_score(y, probabilities, multi_class="ovr", average="macro")
    )
    assert compute_metric("log_loss", scores, labels) == pytest.approx(sk.log_loss(y, probabilities))
    assert compute_metric("macro_f1", scores, labels) == sk.f1_score(y, predicted, average="macro")
    assert compute_metric("balanced_accuracy", scores, labels) == sk.balanced_accuracy_score(y, predicted)
    assert confusion_matrix(scores, labels).tolist() == sk.confusion_matrix(y, predicted).tolist()


def test_classes_without_test_samples() -> None:
    """AUROC is the mean over the classes present; with a single class it is not defined."""
    from sklearn import metrics as sk  # here: it takes half a second to import

    scores = torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 2.0, 0.0, 3.0], [1.0, 0.0, 0.0, 0.0]])
    labels = torch.tensor([0, 1, 1])
    probabilities = scores.double().softmax(1).numpy()
    expected = [sk.roc_auc_score(labels.numpy() == c, probabilities[:, c]) for c in (0, 1)]
    assert compute_metric("auroc", scores, labels) == pytest.approx(sum(expected) / 2)
    assert confusion_matrix(scores, labels).shape == (4, 4)
    alone = torch.tensor([0, 0, 0])
    assert compute_metric("auroc", scores, alone) is None
    assert compute_metric("balanced_accuracy", scores, alone) == pytest.approx(2 / 3)
    assert math.isfinite(compute_metric("log_loss", scores, alone) or math.nan)


def test_a_diverged_model_has_no_probabilities() -> None:
    scores = torch.full((4, 3), math.nan)
    labels = torch.tensor([0, 1, 2, 0])
    assert compute_metric("log_loss", scores, labels) is None
    assert compute_metric("macro_f1", scores, labels) is not None


def test_impossible_classes_may_have_a_score_of_minus_infinity() -> None:
    scores = torch.tensor([[1.0, -math.inf], [2.0, -math.inf]])
    assert compute_metric("log_loss", scores, torch.tensor([0, 0])) == pytest.approx(0.0, abs=1e-9)
