"""Experiment trackers: TensorBoard, MLflow, Weights & Biases, or a class of the user's.

`interface` defines what a tracker is, `tracking` creates trackers by name and reports each round to them. An error in
a tracker never fails a run.
"""

from polyfed.trackers.interface import Tracker
from polyfed.trackers.tracking import create_trackers, track_run

__all__ = ["Tracker", "create_trackers", "track_run"]
