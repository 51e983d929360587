"""The CNNs of the benchmark `peers` as models of polyfed. Configs import this module."""

from __future__ import annotations

from functools import partial

from polyfed.benchmarks.peer_scripts import setting
from polyfed.models import registry

NAMES = [f"peer-cnn-{channels}" for channels in setting.CHANNELS]
for _name, _channels in zip(NAMES, setting.CHANNELS, strict=True):
    registry.register(_name, partial(setting.PeerCNN, _channels), head="fc")
