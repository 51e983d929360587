"""Requests of the page to start a run: parse them, and reject what a page must not ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.config import Config

MAX_OVERRIDES = 64
MAX_LENGTH = 2000  # characters of one override
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,=+-]{0,127}")  # of a run folder that the page may create
OLD = re.compile(r"\.old-\d+$")  # such folders are not listed
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
PATH_KEYS = {"root", "path", "checkpoint", "start"}  # their values are paths, whatever they look like
NO_PATHS = {"data.dataset", "name", "engine.start"}  # of keys that look like paths or have such values
CODE_KEYS = {"imports", "source"}  # their values are Python modules or files
IN_TERMINAL = "use `polyfed run` in a terminal for that"


@dataclass(frozen=True)
class StartRequest:
    """A preset and overrides, as `polyfed run` takes them."""

    preset: str
    overrides: tuple[str, ...]

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> StartRequest:
        """Parse a request. `overrides` is text with one override per line; empty lines and comments are ignored."""
        preset, text, name = (body.get(key, "") for key in ("preset", "overrides", "name"))
        if not (isinstance(preset, str) and isinstance(text, str) and isinstance(name, str)):
            raise InputError("preset, overrides and name must be texts")
        lines = [line.strip() for line in text.splitlines()]
        overrides = [line for line in lines if line and not line.startswith("#")]
        if name.strip():
            overrides.append(f"name={json.dumps(name.strip())}")
        if len(overrides) > MAX_OVERRIDES:
            raise InputError(f"{len(overrides)} overrides were given; at most {MAX_OVERRIDES} are allowed")
        for one in overrides:
            if len(one) > MAX_LENGTH:
                raise InputError(f"an override may have {MAX_LENGTH} characters at most: {one[:40]}...")
            if not KEY.fullmatch(one.partition("=")[0].strip()) or "=" not in one:
                raise InputError(f"the override '{one}' is not of the form key=value, such as train.lr=0.05")
        return cls(preset, tuple(_without_spaces(one) for one in overrides))

    def config(self, root: Path) -> Config:
        """Return the config of the run. Raise InputError if it is invalid, or not allowed from a page.

        `root` is the folder of the page: paths in the config must be inside it.
        """
        from polyfed.config import parse
        from polyfed.config.early_checks import check_names
        from polyfed.config.loading import PRESETS, apply_overrides, preset_hint, preset_names, read_file

        if self.preset not in preset_names():
            raise InputError(f"there is no preset called '{self.preset}'; {preset_hint(self.preset)}")
        raw = apply_overrides(read_file(PRESETS / f"{self.preset}.yaml"), self.overrides)
        _reject_code_and_paths(raw, root)  # before anything uses the values
        config = parse(raw, self.preset)
        _reject_code_and_paths(config.to_dict(), root)
        if not NAME.fullmatch(config.run_name) or OLD.search(config.run_name):
            raise InputError(
                f"the name '{config.run_name}' is not allowed: use at most 128 letters, digits and . _ , = + -, "
                "with a letter or digit first"
            )
        check_names(config)
        return config

    def arguments(self) -> list[str]:
        """Return the arguments of `polyfed check` and `polyfed run`. None of them is read as an option."""
        from polyfed.config.loading import PRESETS

        # the full path: a file or folder with the name of the preset would take precedence
        return ["--", str(PRESETS / f"{self.preset}.yaml"), *self.overrides]


def _without_spaces(override: str) -> str:
    key, _, value = override.partition("=")
    return f"{key.strip()}={value.strip()}"


def _reject_code_and_paths(config: Mapping[str, Any], root: Path) -> None:
    """Raise InputError if a config names code to import, another cluster, or a path outside of the folder."""
    for keys, value in _leaves(config):
        dotted = ".".join(keys)
        if CODE_KEYS & set(keys) and value not in (None, ""):
            raise InputError(f"{dotted}: a run that is started from the page cannot import code; {IN_TERMINAL}")
        if not isinstance(value, str):
            continue
        if keys[0] == "track" and ":" in value:
            raise InputError(f"track: a run that is started from the page cannot import '{value}'; {IN_TERMINAL}")
        if dotted == "engine.address":
            raise InputError(
                f"engine.address: a run that is started from the page cannot use a cluster; {IN_TERMINAL}"
            )
        looks_like_path = PATH_KEYS & set(keys) or re.search(r"[/\\~]|\.py$", value)
        if looks_like_path and dotted not in NO_PATHS and not _inside(value, root):
            raise InputError(f"{dotted}: '{value}' is outside of the folder of this page, {root}; {IN_TERMINAL}")


def _inside(value: str, root: Path) -> bool:
    try:
        return Path(value).expanduser().resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):
        return False


def _leaves(tree: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of nested mappings and lists with their keys. Entries of a list have the key of the list."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*keys, str(key)))
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value, keys)
    else:
        yield keys, tree
