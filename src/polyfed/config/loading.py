"""Raw configs as users write them: YAML files, presets by name, and 'key=value' overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from polyfed.errors import InputError, closest
from polyfed.runs.config_text import read_yaml

PRESETS = Path(__file__).parent.parent / "presets"


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
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
    """Return the names of all presets, sorted: 'quickstart', and 'fedl2g/table1-cifar100' for one in a subfolder."""
    return list(_preset_names())


@cache
def _preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(PRESETS).with_suffix("").as_posix() for path in PRESETS.rglob("*.yaml")))


def read_source(source: str | Path) -> dict[str, Any]:
    """Read the raw config of a file, or of a preset by its name."""
    path = Path(source)
    name = str(source)
    # A folder called like a preset does not hide it: sweeps of 'fedl2g/table1-cifar100' may be kept in 'fedl2g'.
    if path.suffix in {".yaml", ".yml"} or (path.exists() and not (path.is_dir() and name in preset_names())):
        return read_file(path)
    if name in preset_names():
        return read_file(PRESETS / f"{name}.yaml")
    raise InputError(f"there is no file and no preset called '{name}'; {preset_hint(name)}")


def preset_hint(name: str) -> str:
    """Return a hint for a message about an unknown preset. There are too many presets to list them in a message."""
    match = closest(name, preset_names())
    return f"did you mean '{match}'?" if match is not None else "run `polyfed list presets` to see all presets"


def short_name(source: str | Path) -> str:
    """Return a name for folders: a file's name without its ending, or a preset's name with '-' for '/'."""
    name = str(source)
    return name.replace("/", "-") if name in preset_names() else Path(name).stem


def apply_overrides(raw: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a raw config with 'a.b=value' overrides applied. Values are parsed as YAML.

    Overrides that choose a method, a filter or a partition scheme are applied before their options.
    """
    parsed = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"the override '{text}' is not of the form key=value, such as train.lr=0.05")
        try:
            parsed.append((key.split("."), read_yaml(value), text))
        except yaml.YAMLError:
            raise InputError(f"the value of the override '{text}' is not YAML") from None
    return _apply(raw, parsed)


def apply_settings(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a raw config with values set by dotted key, as `apply_overrides` does."""
    return _apply(raw, [(key.split("."), value, override_text(key, value)) for key, value in settings.items()])


def _apply(raw: Mapping[str, Any], overrides: Iterable[tuple[list[str], Any, str]]) -> dict[str, Any]:
    result = unshared_copy(dict(raw))
    for keys, value, text in sorted(overrides, key=lambda override: not _is_selector(override[0])):
        set_key(result, keys, unshared_copy(value), text)
    return dict(result)


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values, by dotted key, that `apply_settings` needs to turn one raw config into another.

    If a mapping selects another method, filter or partition scheme, or lacks a key, it is returned as a whole.
    """
    changed: dict[str, Any] = {}
    for key, value in new.items():
        before: Any = old.get(key)
        name = f"{prefix}{key}"
        if before == value and key in old:
            continue
        selector = _SELECTORS.get(tuple(name.split(".")), "")
        nested = isinstance(value, dict) and isinstance(before, dict) and before.keys() <= value.keys()
        if nested and before.get(selector) == value.get(selector):
            changed.update(changed_settings(before, value, f"{name}."))
        else:
            changed[name] = value
    return changed


def override_text(key: str, value: Any) -> str:
    """Return an override as users write it on a command line."""
    return f"{key}={value_text(value)}"


def value_text(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9).strip()
    return text.removesuffix("...").strip()


# Mappings in which one entry selects something, and the other entries are the options of what it selects.
_NAMED = ("method", "server_filter", "aggregation")  # here a name alone stands for a mapping with this name
_SELECTORS: dict[tuple[str, ...], str] = {**{(key,): "name" for key in _NAMED}, ("data", "partition"): "scheme"}


def _is_selector(keys: list[str]) -> bool:
    return tuple(keys) in _SELECTORS or keys[-1] == _SELECTORS.get(tuple(keys[:-1]))


def set_key(tree: dict[str, Any], keys: list[str], value: Any, text: str) -> None:
    """Set a nested key in place. Selecting another method, filter or scheme drops the options of the old one.

    `text` is the override as the user wrote it, for error messages.
    """
    if _is_selector(keys) and tuple(keys) not in _SELECTORS:
        keys, value = keys[:-1], {keys[-1]: value}
    elif len(keys) == 1 and keys[0] in _NAMED and isinstance(value, str):
        value = {"name": value}
    selector = _SELECTORS.get(tuple(keys))
    for key in keys[:-1]:
        inner = tree.get(key)
        if isinstance(inner, str) and key in _NAMED:
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
        selects_other = selector is not None and selector in value and value[selector] != old.get(selector)
        value = value if selects_other else {**old, **value}
    tree[last] = value


def unshared_copy(value: Any) -> Any:
    """Copy nested dicts and lists. Unlike `copy.deepcopy`, copy twice what a YAML anchor shares between two keys."""
    if isinstance(value, dict):
        return {key: unshared_copy(item) for key, item in value.items()}
    return [unshared_copy(item) for item in value] if isinstance(value, list) else value
