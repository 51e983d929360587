"""Configs: sections with their keys and defaults (`sections`), parsing (`config`), files, presets and overrides
(`loading`), and grids of configs (`sweep`).

Everything in this room works without torch, so that a wrong key is reported at once.
"""

from polyfed.config.config import Config, load_config, parse
from polyfed.config.sections import (
    DataConfig,
    EvaluateConfig,
    ModelsConfig,
    PrivacyConfig,
    TrainConfig,
    size_in_bytes,
)

__all__ = [
    "Config",
    "DataConfig",
    "EvaluateConfig",
    "ModelsConfig",
    "PrivacyConfig",
    "TrainConfig",
    "load_config",
    "parse",
    "size_in_bytes",
]
