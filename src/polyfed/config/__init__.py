"""Configs: their keys, types and defaults (`settings`), their files and presets (`sources`), and grids (`sweep`).

Everything in this room works without torch, so that a wrong key is reported at once.
"""

from polyfed.config.settings import (
    Config,
    DataConfig,
    EvaluateConfig,
    ModelsConfig,
    PrivacyConfig,
    TrainConfig,
    parse,
    size_in_bytes,
)

__all__ = [
    "Config",
    "DataConfig",
    "EvaluateConfig",
    "ModelsConfig",
    "PrivacyConfig",
    "TrainConfig",
    "parse",
    "size_in_bytes",
]
