"""Configs as people write them: YAML files, presets by name, 'key=value' overrides. Meaning comes from config.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from polyfed.errors import InputError, nearest
from polyfed.runs.config_text import read_yaml


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        raw = read_yaml(path.read_text())
    except OSError as error:
        raise InputError(f"the config {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"the config {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise InputError(f"the config {path} holds a {type(raw).__name__}, expected a mapping of keys to values")
    return raw


def preset_names() -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parent.parent / "presets").glob("*.yaml"))


def find(source: str | Path) -> dict[str, Any]:
    """The raw config in a file, or of a preset by its name."""
    path = Path(source)
    if path.suffix in {".yaml", ".yml"} or path.exists():
        return read_file(path)
    name = str(source)
    if name in preset_names():
        return read_file(Path(__file__).parent.parent / "presets" / f"{name}.yaml")
    raise InputError(f"there is no file and no preset called '{name}': {nearest(name, preset_names())}")


def override(raw: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply 'a.b=value' overrides; values are read as YAML. What chooses a method or a scheme comes first."""
    result = copied(dict(raw))
    wanted = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"the override '{text}' is not of the form key=value, such as train.lr=0.05")
        try:
            wanted.append((key.split("."), read_yaml(value), text))
        except yaml.YAMLError:
            raise InputError(f"the value of the override '{text}' is not YAML") from None
    for keys, parsed, text in sorted(wanted, key=lambda one: not _chooses(one[0])):
        put(result, keys, parsed, text)
    return dict(result)


# keys whose other entries are options of what one entry chooses
_CHOICES = {("method",): "name", ("server_filter",): "name", ("data", "partition"): "scheme"}


def _chooses(keys: list[str]) -> bool:
    return tuple(keys) in _CHOICES or keys[-1] == _CHOICES.get(tuple(keys[:-1]))


def put(tree: dict[str, Any], keys: list[str], value: Any, text: str) -> None:
    """Set one nested key. Choosing another method or partition scheme lets go of the options of the old one."""
    if _chooses(keys) and tuple(keys) not in _CHOICES:
        keys, value = keys[:-1], {keys[-1]: value}
    elif keys in (["method"], ["server_filter"]) and isinstance(value, str):
        value = {"name": value}
    choice = _CHOICES.get(tuple(keys))
    for key in keys[:-1]:
        inner = tree.get(key)
        if isinstance(inner, str) and key in ("method", "server_filter"):
            inner = {"name": inner}
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise InputError(f"the override '{text}' goes into '{key}', which is {inner!r} and has no keys")
        tree[key] = inner
        tree = inner
    last = keys[-1]
    old = tree.get(last)
    if isinstance(old, dict) and isinstance(value, dict):
        other = choice is not None and choice in value and value[choice] != old.get(choice)
        value = value if other else {**old, **value}
    tree[last] = value


def copied(value: Any) -> Any:
    """A copy in which nothing is shared, not even what YAML's anchors let two keys share."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
