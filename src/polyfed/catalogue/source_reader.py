"""Read the declarations of methods from their source, without importing them.

A method declares its name, options, needs and messages as literals. Its source and the sources of its base classes
are enough for a list, so that lists are fast and work without torch.
"""

from __future__ import annotations

import ast
import copy
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
    """The entry of a method or filter in a list."""

    name: str
    title: str
    paper: str
    requires: list[str]
    sends_up: str
    sends_down: str
    options: list[Option]
    verdict: str = ""
    upload_kinds: tuple[str, ...] = ()  # kinds of information that clients upload
    aliases: tuple[str, ...] = ()
    module: str = field(default="", repr=False)
    class_name: str = field(default="", repr=False)


def read_file(module: str, path: Path) -> Iterator[MethodInfo]:
    """Yield the methods or filters that a source file declares."""
    source = _Source.of(path)
    intro = [part.strip() for part in (ast.get_docstring(source.tree) or "").split("\n\n")]
    for node in source.classes:
        names = _registered_names(node)
        if not names:
            continue
        declaration = source.declaration(node)
        yield MethodInfo(
            name=names[0],
            title=(ast.get_docstring(node) or "").split("\n")[0],
            paper=" ".join(intro[1].split()) if len(intro) > 1 else "",
            requires=[need for need, required in (_needs_defaults() | declaration.needs).items() if required],
            sends_up=declaration.sends.get("up", "nothing"),
            sends_down=declaration.sends.get("down", "nothing"),
            options=list(declaration.options.values()),
            verdict=declaration.verdict,
            upload_kinds=tuple(declaration.sends.get("kinds", ())),
            aliases=names[1:],
            module=module,
            class_name=node.name,
        )


@dataclass
class _Declaration:
    """Options, needs and messages of a class; its own come before those of its bases."""

    options: dict[str, Option] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)
    sends: dict[str, Any] = field(default_factory=dict)
    verdict: str = ""  # of the class itself


@dataclass(frozen=True, eq=False)
class _Source:
    """The source file of a method."""

    tree: ast.Module
    lines: list[str]

    @staticmethod
    @cache
    def of(path: Path) -> _Source:
        text = path.read_text()
        return _Source(ast.parse(text), text.splitlines())

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def declaration(self, node: ast.ClassDef) -> _Declaration:
        """Return the declaration of a class, with what it inherits from other methods."""
        declaration = _Declaration()
        for base in reversed(node.bases):
            source, base_node = self._base(base, node)
            if source is None or base_node is None:
                continue
            inherited = source.declaration(base_node)
            if _is_dataclass(base_node):
                declaration.options |= inherited.options
            declaration.needs = inherited.needs or declaration.needs
            declaration.sends = inherited.sends or declaration.sends
        declaration.options |= self._own_options(node)  # an overridden option keeps its position, as in a dataclass
        for item in node.body:
            if isinstance(item, ast.Assign):
                for target in item.targets:
                    if isinstance(target, ast.Name) and target.id in ("needs", "sends"):
                        setattr(declaration, target.id, _keywords(item.value))
                    elif isinstance(target, ast.Name) and target.id == "verdict":
                        declaration.verdict = str(_literal(item.value))
        return declaration

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
                type_text = ast.unparse(item.annotation)
                if "Annotated" in type_text:
                    type_text = ast.unparse(bounds.visit(copy.deepcopy(item.annotation)))
                name, default, help_text = item.target.id, _literal(item.value), self._comment_after(item.value)
                options[name] = Option(name, type_text, default, help_text, bounds.stated)
        return options

    def _comment_after(self, node: ast.expr) -> str:
        """Return the comment in the last line of a default value: the help of an option."""
        line = self.lines[(node.end_lineno or node.lineno) - 1]
        rest = line.encode()[node.end_col_offset or 0 :].decode().strip()  # columns count bytes
        return rest.lstrip("# ") if rest.startswith("#") else ""

    def _base(self, base: ast.expr, subclass: ast.ClassDef) -> tuple[_Source | None, ast.ClassDef | None]:
        """Find a base class: earlier in this file, or in the file of a method that this file imports."""
        name = ast.unparse(base)
        for node in self.classes:
            if node.name == name and node.lineno < subclass.lineno:
                return self, node
        first, dot, rest = name.partition(".")
        module, _, kind = (self._imported().get(first, first) + dot + rest).rpartition(".")
        if not module.startswith("polyfed.methods."):
            return None, None
        folder = PACKAGE.parent.joinpath(*module.split("."))
        path = next((path for path in (folder.with_suffix(".py"), folder / "method.py") if path.exists()), None)
        if path is None:
            return None, None
        source = _Source.of(path)
        return source, next((node for node in source.classes if node.name == kind), None)

    def _imported(self) -> dict[str, str]:
        """Return the imported names of the file with their full names."""
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
    return any(ast.unparse(decorator).partition("(")[0].endswith("dataclass") for decorator in node.decorator_list)


def _registered_names(node: ast.ClassDef) -> tuple[str, ...]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "register":
            return tuple(str(ast.literal_eval(argument)) for argument in decorator.args)
    return ()


def _literal(node: ast.expr) -> Any:
    """Return the value of a default, or its text if it is an expression."""
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
