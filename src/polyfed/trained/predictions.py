"""`polyfed predict`: predictions for a folder of samples, as a csv table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from polyfed.data.new_samples import SampleForm, read_new_samples
from polyfed.trained.client import TrainedClient


@dataclass(frozen=True)
class Predictions:
    """Predicted classes with their probabilities, and the true classes if they are known."""

    samples: tuple[str, ...]
    predicted: tuple[str, ...]
    probabilities: tuple[float, ...]
    labels: tuple[str, ...] | None

    @property
    def correct(self) -> int:
        return sum(p == label for p, label in zip(self.predicted, self.labels or (), strict=True))

    def write(self, stream: TextIO) -> None:
        """Write a csv table with one row per sample."""
        writer = csv.writer(stream, lineterminator="\n")
        labelled = self.labels is not None
        writer.writerow(["sample", "predicted", "probability", *(["label"] if labelled else [])])
        for row, name in enumerate(self.samples):
            label = [] if self.labels is None else [self.labels[row]]
            writer.writerow([name, self.predicted[row], f"{self.probabilities[row]:.6f}", *label])


def predict_folder(trained: TrainedClient, path: Path) -> Predictions:
    """Read samples and predict their classes."""
    form = SampleForm(trained.shape, trained.kind, trained.classes, trained.features, trained.format)
    samples = read_new_samples(path, form)
    scores = trained.scores(samples.inputs)
    probabilities, labels = scores.softmax(1).numpy(), scores.argmax(1).numpy()
    return Predictions(
        samples.names,
        tuple(trained.classes[label] for label in labels),
        tuple(float(row[label]) for row, label in zip(probabilities, labels, strict=True)),
        samples.labels,
    )
