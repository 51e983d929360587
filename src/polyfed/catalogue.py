"""Which methods there are, read from their source without running it: lists answer at once, without torch.

A method declares itself by literals (its name, fields, needs and what it sends), so its source says all that a list
shows. `load` imports one method; `make` checks its fields and makes it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    from polyfed.core.method import Method

ENTRY_POINTS = "polyfed.methods"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Option:
    """A hyperparameter of a method."""

    name: str
    type: str
    default: Any
    help: str


@dataclass(frozen=True)
class Listed:
    """A method as a list shows it."""

    name: str
    title: str
    paper: str
    requires: list[str]
    sends_up: str
    sends_down: str
    options: list[Option]
    aliases: tuple[str, ...] = ()
    module: str = field(default="", repr=False)


@cache
def catalogue() -> Mapping[str, Listed]:
    """Every method by name, in alphabetical order."""
    found: dict[str, Listed] = {}
    for module, path in _sources():
        try:
            found |= {listed.name: listed for listed in _read(module, path)}
        except (OSError, SyntaxError, ValueError):
            if module.startswith("polyfed."):
                raise
            # a plug-in that cannot be read is not listed; whoever asks for it by name is told so
    return dict(sorted(found.items()))


def load(name: str) -> type[Method]:
    """The class of a method. Its file is imported now, unless it is already there."""
    from polyfed.core.method import registered

    if name not in registered():
        for listed in catalogue().values():
            if name in (listed.name, *listed.aliases):
                importlib.import_module(listed.module)
    if name not in registered():
        known = {*catalogue(), *registered()}
        raise InputError(f"there is no method called '{name}'; {nearest(name, known)}")
    return registered()[name]


def make(settings: Mapping[str, Any]) -> Method:
    """A method from its name and fields; unknown fields and wrong types are refused in one sentence."""
    import dataclasses
    from typing import get_type_hints

    from pydantic import ConfigDict, ValidationError, create_model

    method = load(str(settings["name"]))
    given = {key: value for key, value in settings.items() if key != "name"}
    fields = {f.name: f for f in dataclasses.fields(method)}
    for key in given:
        if key not in fields:
            raise InputError(f"method {method.name} has no field '{key}'; {nearest(key, fields)}")
    hints = get_type_hints(method)
    shape: Any = {key: (hints[key], ...) for key in given}
    try:
        create_model(
            "fields", __config__=ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False), **shape
        )(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        said = problem["msg"][0].lower() + problem["msg"][1:]
        raise InputError(
            f"method.{problem['loc'][0]} is {problem['input']!r}: {said.replace('input should be', 'expected')}"
        ) from None
    return method(**given)


# reading sources


def _sources() -> Iterator[tuple[str, Path]]:
    """Modules that hold methods: ours, and those that installed packages announce."""
    for path in sorted((_HERE / "methods").glob("*.py")):
        if path.stem != "__init__":
            yield f"polyfed.methods.{path.stem}", path
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        module = entry.value.partition(":")[0]
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue  # announced by a package whose module is gone
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield module, Path(spec.origin)


def _read(module: str, path: Path) -> Iterator[Listed]:
    source = path.read_text()
    tree = ast.parse(source)
    comments = _comments(source)
    intro = [part.strip() for part in (ast.get_docstring(tree) or "").split("\n\n")]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        names = _registered_names(node)
        if not names:
            continue
        declared = {
            t.id: item.value
            for item in node.body
            if isinstance(item, ast.Assign)
            for t in item.targets
            if isinstance(t, ast.Name)
        }
        needs = _needs_defaults() | _keywords(declared.get("needs"))
        sends = {"up": "nothing", "down": "nothing"} | _keywords(declared.get("sends"))
        yield Listed(
            name=names[0],
            title=(ast.get_docstring(node) or "").split("\n")[0],
            paper=" ".join(intro[1].split()) if len(intro) > 1 else "",
            requires=[need for need, wanted in needs.items() if wanted],
            sends_up=sends["up"],
            sends_down=sends["down"],
            options=[
                Option(
                    item.target.id,
                    ast.unparse(item.annotation),
                    _literal(item.value),
                    comments.get(item.lineno, ""),
                )
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and item.value is not None
                and not ast.unparse(item.annotation).startswith("ClassVar")
            ],
            aliases=names[1:],
            module=module,
        )


def _registered_names(node: ast.ClassDef) -> tuple[str, ...]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).split(".")[-1] == "register":
            return tuple(str(ast.literal_eval(argument)) for argument in mark.args)
    return ()


def _literal(node: ast.expr) -> Any:
    """A default's value, or its text where it is computed."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _keywords(node: ast.expr | None) -> dict[str, Any]:
    if not isinstance(node, ast.Call):
        return {}
    return {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}


@cache
def _needs_defaults() -> dict[str, bool]:
    for node in ast.parse((_HERE / "core" / "needs.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Needs":
            return {
                item.target.id: bool(ast.literal_eval(item.value))
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
            }
    return {}


def _comments(source: str) -> dict[int, str]:
    """The comment at the end of each line: a field's help."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
