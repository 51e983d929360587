"""Trackers: what a run measures, written for TensorBoard, MLflow or Weights & Biases. None of them can fail a run."""

from polyfed.trackers.interface import Tracker
from polyfed.trackers.tracking import check, tracked

__all__ = ["Tracker", "check", "tracked"]
