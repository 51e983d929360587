"""YAML configs as plain values: parse them, flatten them to dotted keys, format single values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    # compiled where PyYAML has it: reports and the dashboard read a thousand configs
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


UNSET = "-"  # how tables show None; a key that is missing counts as None


class _Loader(_Base):
    """A safe YAML loader that reads 1e-3 as a number and raises an error for a duplicate key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        duplicates = [key for index, key in enumerate(keys) if key in keys[:index]]
        if duplicates:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{duplicates[0]}' is given twice", node.start_mark
            )
        return dict(super().construct_mapping(node, deep))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str) -> Any:
    """Parse YAML into plain values. A file cannot name Python types to construct. Raise `yaml.YAMLError`."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def format_value(value: Any) -> str:
    """Format a config value for tables."""
    if value is None:
        return UNSET
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
