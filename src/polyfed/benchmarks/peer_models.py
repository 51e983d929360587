"""The CNNs of the benchmark `peers` as models of polyfed. Configs import this module."""

from __future__ import annotations

from functools import partial

from polyfed.benchmarks.peer_scripts import setting
from polyfed.models import registry

NAMES = [f"peer-cnn-{convolutions}-{hidden}" for convolutions, hidden in setting.SHAPES]
for _name, _shape in zip(NAMES, setting.SHAPES, strict=True):
    registry.register(_name, partial(setting.PeerCNN, *_shape), head="fc")
