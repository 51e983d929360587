"""YAML configs as plain values: parse them, flatten them to dotted keys, format single values."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    # compiled where PyYAML has it: reports and the dashboard read a thousand configs
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


MAX_DEPTH = 100  # of nested mappings and lists
MAX_VALUES = 1_000_000  # of a file, with aliases replaced by their values
UNSET = "-"  # how tables show None; a key that is missing counts as None


class LimitError(yaml.constructor.ConstructorError):
    """Valid YAML that exceeds a limit. `problem` says which."""


class _Loader(_Base):
    """A safe YAML loader that reads 1e-3 as a number and raises an error for a duplicate key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):
            if not isinstance(key, Hashable):
                break  # the base class reports it
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' is given twice", node.start_mark
                )
            seen.add(key)
        return dict(super().construct_mapping(node, deep))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _construct_integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    value = int(loader.construct_yaml_int(node))
    if abs(value) >= 1 << 64:
        raise _limit("a whole number has more than 64 bits", node.start_mark)
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_integer)


def read_yaml(text: str) -> Any:
    """Parse YAML into plain values. A file cannot name Python types to construct. Raise `yaml.YAMLError`.

    Raise `LimitError`, a `YAMLError`, if a whole number has more than 64 bits, if values are nested more than
    MAX_DEPTH deep, or if there are more than MAX_VALUES values once every alias is replaced by its value. A file of a
    few hundred bytes could otherwise fill the memory.
    """
    try:
        _check_depth(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if "*" in text:
                _check_aliases(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except ValueError as error:  # a number with thousands of digits, a date that does not exist, or invalid Unicode
        raise yaml.constructor.ConstructorError(None, None, str(error), None) from None


def _check_depth(text: str) -> None:
    """Raise `yaml.YAMLError` if collections are nested too deeply. PyYAML would crash the process."""
    brackets = text.count("[") + text.count("{")
    columns = max((len(line) - len(line.lstrip(" -?")) for line in text.splitlines()), default=0)
    if brackets + 2 * columns + 2 <= MAX_DEPTH:  # block collections start at different columns, two at most at each
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _limit(f"values are nested more than {MAX_DEPTH} deep", event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_aliases(root: yaml.Node) -> None:
    """Raise `yaml.YAMLError` if the values become too many or too deep when aliases are replaced, or never end."""
    expanded: dict[yaml.Node, tuple[int, int] | None] = {}  # size and depth; None while its parts are being counted
    stack = [root]
    while stack:
        node = stack[-1]
        parts = _parts(node)
        if node not in expanded:
            expanded[node] = None
            unknown = [part for part in parts if expanded.get(part) is None]
            if any(part in expanded for part in unknown):
                raise _limit("an alias refers to a value that contains it", node.start_mark)
            stack += unknown
            continue
        stack.pop()
        if expanded[node] is None:
            known = [one for part in parts if (one := expanded[part]) is not None]
            size, depth = 1 + sum(one[0] for one in known), 1 + max((one[1] for one in known), default=0)
            if size > MAX_VALUES or depth > MAX_DEPTH:
                raise _limit(f"aliases expand to more than {MAX_VALUES:,} values", node.start_mark)
            expanded[node] = size, depth


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _limit(problem: str, mark: Any) -> LimitError:
    return LimitError(None, None, problem, mark)


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
