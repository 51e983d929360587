"""The config to start from: the user's own, or a small one for the kind of data, with the proposed method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from polyfed.advice.situation import Situation
from polyfed.config import parse
from polyfed.config.loading import apply_overrides, read_source
from polyfed.errors import InputError
from polyfed.runs.atomic_files import check_file_writable, write_atomically

# presets for data of each kind, their models in one architecture, and the width of common features
BASES: Mapping[str, tuple[str, str, str]] = {
    "images": ("leaderboard/few-skewed", "tiny-cnn", "models.feature_map=[16,2,2]"),
    "tables": ("breast-cancer", "tiny-table-mlp", "models.feature_dim=32"),
    "series": ("uci-har", "tiny-series-cnn", "models.feature_dim=32"),
    "tokens": ("ag-news", "tiny-text-bag", "models.feature_dim=32"),
}
SIZES = "models.group=[tiny-cnn@0.5,tiny-cnn@0.75,tiny-cnn]"
METHOD_KEYS = ("method", "server_filter", "splitting", "train.optimizer", "train.lr")  # that select a method
PRIVACY = {"clip": 5.0, "epsilon": 8.0, "min_count": 20}


def start_config(
    selected: tuple[str, ...], situation: Situation, source: str | Path | None = None, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the config of a proposed method. `selected` are the overrides that select the method."""
    own = source is not None
    base, one_model, width = BASES[situation.data]
    raw = apply_overrides(read_source(source if source is not None else base), overrides)
    settings: list[str] = []
    if not own:
        settings.append(width)
        if situation.models == "same":
            settings.append(f"models.group=[{one_model}]")
        elif situation.models == "sizes" and situation.data == "images":
            settings.append(SIZES)
        if situation.clients is not None:
            settings.append(f"clients={situation.clients}")
    settings += [text for text in selected if _belongs(text.partition("=")[0], own)]
    raw = apply_overrides(raw, settings)
    raw.pop("privacy", None)
    if situation.differential_privacy:
        raw["privacy"] = {field: dict(PRIVACY) for field in class_tables(raw["method"])}
    parse(raw)
    return raw


def _belongs(key: str, own: bool) -> bool:
    """Return whether an override selects the method; optimiser and learning rate of a user's config stay."""
    if key.startswith("train.") and own:
        return key == "train.optimizer"
    return key in METHOD_KEYS or key.startswith("method.")


def class_tables(method: Mapping[str, Any]) -> list[str]:
    """Return the uploaded class tables of a method, which differential privacy protects row by row."""
    from polyfed import catalogue
    from polyfed.core.schema import TableField
    from polyfed.core.step import method_steps

    made = catalogue.make(dict(method))
    fields = {name: field for messages in method_steps(made).values() for name, field in messages.up.items()}
    return [name for name, field in fields.items() if isinstance(field, TableField) and field.has_own_rows(made)]


def config_text(raw: Mapping[str, Any], comment: str) -> str:
    """Return a config as YAML, with a comment in its first line."""
    return f"# {comment}\n" + yaml.safe_dump(dict(raw), sort_keys=False, default_flow_style=None, width=110)


def write_config(path: Path, text: str) -> None:
    """Write a config to a new file. Raise InputError if the file exists or its folder does not."""
    if path.exists():
        raise InputError(f"{path} exists already; name a new file")
    check_file_writable(path)
    write_atomically(path, text.encode())
