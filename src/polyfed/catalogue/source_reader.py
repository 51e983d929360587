"""Read the declarations of methods from their source, without importing them.

A method declares its name, options, needs and messages as literals, so its source, with the sources of the methods
that it derives from, is all that a list needs. Lists therefore work at once and without torch.
"""

from __future__ import annotations

import ast
import copy
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Option:
    """A hyperparameter of a method."""

    name: str
    type: str
    default: Any
    help: str
    bounds: Mapping[str, float] = field(default_factory=dict)  # ge, gt, le, lt, degenerate


@dataclass(frozen=True)
class MethodInfo:
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


def read_file(module: str, path: Path) -> Iterator[MethodInfo]:
    """Yield the methods or filters that a source file declares."""
    source = _Source.of(path)
    intro = [part.strip() for part in (ast.get_docstring(source.tree) or "").split("\n\n")]
    for node in source.classes:
        names = _registered_names(node)
        if not names:
            continue
        said = source.declared(node)
        yield MethodInfo(
            name=names[0],
            title=(ast.get_docstring(node) or "").split("\n")[0],
            paper=" ".join(intro[1].split()) if len(intro) > 1 else "",
            requires=[need for need, wanted in (_needs_defaults() | said.needs).items() if wanted],
            sends_up=said.sends.get("up", "nothing"),
            sends_down=said.sends.get("down", "nothing"),
            options=list(said.options.values()),
            aliases=names[1:],
            module=module,
        )


@dataclass
class _Declared:
    """What a class says by literals, its own words before those of its bases."""

    options: dict[str, Option] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)
    sends: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Source:
    """A file that declares methods, as text."""

    tree: ast.Module
    comments: Mapping[int, str]

    @staticmethod
    @cache
    def of(path: Path) -> _Source:
        text = path.read_text()
        return _Source(ast.parse(text), _comments(text))

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def declared(self, node: ast.ClassDef) -> _Declared:
        """Fields, needs and sends of a class, with those it has from bases that are found among the methods."""
        said = _Declared()
        for base in reversed(node.bases):
            where, inherited = self._base(base, node)
            if where is None or inherited is None:
                continue
            before = where.declared(inherited)
            if _is_dataclass(inherited):
                said.options |= before.options
            said.needs, said.sends = before.needs or said.needs, before.sends or said.sends
        said.options |= self._own_options(node)  # one that was there keeps its place, as in a dataclass
        for item in node.body:
            if isinstance(item, ast.Assign):
                for target in item.targets:
                    if isinstance(target, ast.Name) and target.id in ("needs", "sends"):
                        setattr(said, target.id, _keywords(item.value))
        return said

    def _own_options(self, node: ast.ClassDef) -> dict[str, Option]:
        options = {}
        for item in node.body:
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and item.value is not None
                and not ast.unparse(item.annotation).startswith("ClassVar")
            ):
                bounds = _Bounds()
                plain = ast.unparse(bounds.visit(copy.deepcopy(item.annotation)))
                lines = range(item.lineno, (item.end_lineno or item.lineno) + 1)
                help_text = next((self.comments[line] for line in lines if line in self.comments), "")
                options[item.target.id] = Option(
                    item.target.id, plain, _literal(item.value), help_text, bounds.stated
                )
        return options

    def _base(self, base: ast.expr, heir: ast.ClassDef) -> tuple[_Source | None, ast.ClassDef | None]:
        """Where a base class is declared: further up in this file, or in a method's file that this one imports."""
        name = ast.unparse(base)
        for node in self.classes:
            if node.name == name and node.lineno < heir.lineno:
                return self, node
        first, dot, rest = name.partition(".")
        module, _, kind = (self._imported().get(first, first) + dot + rest).rpartition(".")
        if not module.startswith("polyfed.methods."):
            return None, None
        place = PACKAGE.parent.joinpath(*module.split("."))
        path = next((path for path in (place.with_suffix(".py"), place / "method.py") if path.exists()), None)
        if path is None:
            return None, None
        source = _Source.of(path)
        return source, next((node for node in source.classes if node.name == kind), None)

    def _imported(self) -> dict[str, str]:
        """Names that the file imports, and what they stand for."""
        return {
            alias.asname or alias.name: f"{item.module}.{alias.name}"
            for item in self.tree.body
            if isinstance(item, ast.ImportFrom) and not item.level
            for alias in item.names
        }


class _Bounds(ast.NodeTransformer):
    """Replaces `Annotated[type, Ge(0)]` by `type` and collects the bounds, here {"ge": 0}."""

    def __init__(self) -> None:
        self.stated: dict[str, float] = {}

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not (ast.unparse(node.value).split(".")[-1] == "Annotated" and isinstance(node.slice, ast.Tuple)):
            return node
        plain, *marks = node.slice.elts
        for mark in marks:
            if isinstance(mark, ast.Call):
                self.stated |= _keywords(mark)  # Interval(ge=0, le=1)
                if mark.args:  # Ge(0)
                    kind = ast.unparse(mark.func).split(".")[-1].lower()
                    self.stated[kind] = ast.literal_eval(mark.args[0])
        return plain


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(mark).partition("(")[0].endswith("dataclass") for mark in node.decorator_list)


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
    for node in ast.parse((PACKAGE / "core" / "needs.py").read_text()).body:
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
